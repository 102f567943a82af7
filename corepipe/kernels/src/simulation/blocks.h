// KV blocks of a simulated replica: who holds which, and which of the rest are still found by their keys.  The twin of
// corepipe/scheduler/block_pool.py and prefix_index.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace corepipe::sim {

// What a full block is found by: the segment of tokens in which it ends, which stands for all before it, how many of
// the segment's tokens it has, and the group of layers that it is of.
struct Key {
  int64_t segment;
  uint32_t offset, group;

  bool operator==(const Key& other) const {
    return segment == other.segment && offset == other.offset && group == other.group;
  }
};

// A number from 0 on for each of some keys: open addressing, without holes where a key was taken out.
class KeyTable {
 public:
  KeyTable();

  int find(const Key& key) const;  // -1: there is none
  int& at(const Key& key);             // -1: the key is new, and must be given a number before anything else is done
  void erase(const Key& key);
  size_t size() const { return size_; }

 private:
  struct Entry {
    Key key;
    int value;  // -1: nobody is here
  };

  size_t home(const Key& key) const;
  size_t place(const Key& key) const;  // where it is, or would be
  void double_up();

  std::vector<Entry> entries_;  // a power of two of them, half of them free at least
  size_t size_ = 0;
};

// Which replicas have a block: a bit for each.  Most blocks are of one replica, whose number is then all that is kept.
class PrefixIndex {
 public:
  explicit PrefixIndex(int replicas) : words_((replicas + 63) / 64), alone_(words_, 0) {}

  int words() const { return words_; }
  const uint64_t* holders(const Key& key) const;  // null: nobody has it; holds until the next call
  void add(const Key& key, int replica);
  void drop(const Key& key, int replica);

 private:
  int new_set();

  int words_;
  KeyTable owners_;  // 2 * replica, or 2 * place of a set + 1
  std::vector<uint64_t> sets_;
  std::vector<int> free_;
  mutable std::vector<uint64_t> alone_;  // the set of the one owner that was asked for last
};

// Blocks 0 .. total - 1: free, cached or held.  At most max_cached are cached; `index`, if there is one, is told what
// replica number `replica` has.
class BlockPool {
 public:
  BlockPool(int total, int max_cached, PrefixIndex* index, int replica)
      : total_(total), max_cached_(max_cached), index_(index), replica_(replica) {}

  int available() const { return free() + cached_; }
  int held() const { return total_ - free() - cached_; }
  int cached() const { return cached_; }

  // Appends `count` blocks, no more than are available, with a reference each.
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
    int before = -1, behind = -1;  // among those that are cached
    Key key{};
  };

  int free() const { return static_cast<int>(free_.size()) + total_ - used_; }
  void evict(int count);
  void cache(int block);
  void uncache(int block);

  int total_, max_cached_;
  PrefixIndex* index_;
  int replica_;
  int used_ = 0;           // blocks from this one on were never held; they are taken in order, after those in free_
  std::vector<int> free_;  // the last is taken first
  std::vector<Block> blocks_;
  KeyTable known_;
  int cached_ = 0, oldest_ = -1, newest_ = -1;
};

}  // namespace corepipe::sim
