// KV blocks of a simulated replica: their references, and the cached blocks by their keys.  The native version of
// corepipe/scheduler/kv_cache.py and prefix_index.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace corepipe::sim {

// The key of a full block: the segment of tokens in which it ends, which implies all earlier tokens, how many of the
// segment's tokens precede its end, and its group of layers.
struct Key {
  int64_t segment;
  uint32_t offset, group;

  bool operator==(const Key& other) const {
    return segment == other.segment && offset == other.offset && group == other.group;
  }
};

// A hash table from keys to numbers from 0 on: open addressing; removing a key leaves no hole.
class KeyTable {
 public:
  KeyTable();

  int find(const Key& key) const;  // -1: none
  int& at(const Key& key);             // -1: the key is new, and must get a number before the next call
  void erase(const Key& key);
  size_t size() const { return size_; }

 private:
  struct Entry {
    Key key;
    int value;  // -1: the entry is free
  };

  size_t home(const Key& key) const;
  size_t place(const Key& key) const;  // its index, or the one for inserting it
  void double_up();

  std::vector<Entry> entries_;  // a power of two, at least half of them free
  size_t size_ = 0;
};

// The replicas that have a block: a bit per replica.  For a block of a single replica only its number is stored.
class PrefixIndex {
 public:
  explicit PrefixIndex(int replicas) : words_((replicas + 63) / 64), alone_(words_, 0) {}

  int words() const { return words_; }
  const uint64_t* holders(const Key& key) const;  // null: no replica has it; valid until the next call
  void add(const Key& key, int replica);
  void drop(const Key& key, int replica);

 private:
  int new_set();

  int words_;
  KeyTable owners_;  // 2 * replica, or 2 * place of a set + 1
  std::vector<uint64_t> sets_;
  std::vector<int> free_;
  mutable std::vector<uint64_t> alone_;  // the set of a single owner, from the last call
};

// Blocks 0 .. total - 1: free, cached or held.  At most max_cached are cached; `index`, if there is one, is kept up
// to date with the blocks of replica number `replica`.
class BlockPool {
 public:
  BlockPool(int total, int max_cached, PrefixIndex* index, int replica)
      : total_(total), max_cached_(max_cached), index_(index), replica_(replica) {}

  int available() const { return free() + cached_; }
  int held() const { return total_ - free() - cached_; }
  int cached() const { return cached_; }

  // Appends `count` blocks with a reference each; at least that many must be available.
  void allocate(int count, std::vector<int>& to);
  void share(int block);
  void release(int block);
  int find(const Key& key) const { return known_.find(key); }
  void publish(int block, const Key& key);

  std::vector<int> references() const;  // of each block

 private:
  struct Block {
    int references = 0;
    bool known = false;            // it has a key
    int before = -1, behind = -1;  // neighbours in the list of cached blocks
    Key key{};
  };

  int free() const { return static_cast<int>(free_.size()) + total_ - used_; }
  void evict(int count);
  void cache(int block);
  void uncache(int block);

  int total_, max_cached_;
  PrefixIndex* index_;
  int replica_;
  int used_ = 0;           // blocks from this one on were never used; they are taken in order, after those in free_
  std::vector<int> free_;  // the last is taken first
  std::vector<Block> blocks_;
  KeyTable known_;
  int cached_ = 0, oldest_ = -1, newest_ = -1;
};

}  // namespace corepipe::sim
