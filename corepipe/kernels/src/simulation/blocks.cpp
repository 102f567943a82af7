#include "simulation/blocks.h"

#include <algorithm>
#include <utility>

namespace corepipe::sim {

namespace {

constexpr size_t kFirstSize = 64;

uint64_t bit(int replica) { return uint64_t{1} << replica % 64; }

}  // namespace

KeyTable::KeyTable() : entries_(kFirstSize, Entry{{}, -1}) {}

size_t KeyTable::home(const Key& key) const {
  uint64_t mixed = static_cast<uint64_t>(key.segment) * 0x9E3779B97F4A7C15u;
  mixed ^= ((static_cast<uint64_t>(key.group) << 32) | key.offset) * 0xC2B2AE3D27D4EB4Fu;
  mixed ^= mixed >> 32;
  mixed *= 0xD6E8FEB86659FD93u;
  return (mixed ^ (mixed >> 32)) & (entries_.size() - 1);
}

size_t KeyTable::place(const Key& key) const {
  size_t at = home(key);
  while (entries_[at].value >= 0 && !(entries_[at].key == key)) at = (at + 1) & (entries_.size() - 1);
  return at;
}

int KeyTable::find(const Key& key) const { return entries_[place(key)].value; }

int& KeyTable::at(const Key& key) {
  if (2 * (size_ + 1) > entries_.size()) double_up();
  Entry& entry = entries_[place(key)];
  if (entry.value < 0) {
    entry.key = key;
    ++size_;
  }
  return entry.value;
}

void KeyTable::erase(const Key& key) {
  size_t hole = place(key);
  if (entries_[hole].value < 0) return;
  --size_;
  const size_t mask = entries_.size() - 1;
  for (size_t at = (hole + 1) & mask; entries_[at].value >= 0; at = (at + 1) & mask) {
    const size_t wanted = home(entries_[at].key);
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;  // it would be before its first slot
    entries_[hole] = entries_[at];
    hole = at;
  }
  entries_[hole].value = -1;
}

void KeyTable::double_up() {
  const std::vector<Entry> before = std::exchange(entries_, {});
  entries_.assign(2 * before.size(), Entry{{}, -1});
  for (const Entry& entry : before) {
    if (entry.value >= 0) entries_[place(entry.key)] = entry;
  }
}

const uint64_t* PrefixIndex::holders(const Key& key) const {
  const int owner = owners_.find(key);
  if (owner < 0) return nullptr;
  if (owner % 2) return &sets_[static_cast<size_t>(owner / 2) * words_];
  std::fill(alone_.begin(), alone_.end(), 0);
  alone_[owner / 2 / 64] = bit(owner / 2);
  return alone_.data();
}

void PrefixIndex::add(const Key& key, int replica) {
  int& owner = owners_.at(key);
  if (owner < 0 || owner == 2 * replica) {
    owner = 2 * replica;
    return;
  }
  if (owner % 2 == 0) {
    const int other = owner / 2, place = new_set();
    sets_[static_cast<size_t>(place) * words_ + other / 64] |= bit(other);
    owner = 2 * place + 1;
  }
  sets_[static_cast<size_t>(owner / 2) * words_ + replica / 64] |= bit(replica);
}

void PrefixIndex::drop(const Key& key, int replica) {
  const int owner = owners_.find(key);
  if (owner == 2 * replica) owners_.erase(key);
  if (owner < 0 || owner % 2 == 0) return;
  uint64_t* set = &sets_[static_cast<size_t>(owner / 2) * words_];
  set[replica / 64] &= ~bit(replica);
  if (std::any_of(set, set + words_, [](uint64_t word) { return word != 0; })) return;
  owners_.erase(key);
  free_.push_back(owner / 2);
}

int PrefixIndex::new_set() {
  if (free_.empty()) {
    free_.push_back(static_cast<int>(sets_.size()) / words_);
    sets_.resize(sets_.size() + words_, 0);
  }
  const int place = free_.back();
  free_.pop_back();
  return place;
}

void BlockPool::allocate(int count, std::vector<int>& to) {
  if (free() < count) evict(count - free());
  for (; count > 0; --count) {
    int block;
    if (free_.empty()) {
      block = used_++;
      blocks_.emplace_back();
    } else {
      block = free_.back();
      free_.pop_back();
    }
    blocks_[block].references = 1;
    to.push_back(block);
  }
}

void BlockPool::share(int block) {
  if (blocks_[block].references++ == 0) uncache(block);
}

void BlockPool::release(int block) {
  Block& given = blocks_[block];
  if (--given.references > 0) return;
  if (!given.known) {
    free_.push_back(block);
    return;
  }
  cache(block);
  if (max_cached_ < total_ && cached_ > max_cached_) evict(1);
}

void BlockPool::publish(int block, const Key& key) {
  int& known = known_.at(key);
  if (known >= 0) return;
  known = block;
  blocks_[block].known = true;
  blocks_[block].key = key;
  if (index_) index_->add(key, replica_);
}

void BlockPool::evict(int count) {
  for (; count > 0; --count) {
    const int block = oldest_;
    uncache(block);
    known_.erase(blocks_[block].key);
    if (index_) index_->drop(blocks_[block].key, replica_);
    blocks_[block].known = false;
    free_.push_back(block);
  }
}

void BlockPool::cache(int block) {
  blocks_[block].before = newest_;
  blocks_[block].behind = -1;
  (newest_ < 0 ? oldest_ : blocks_[newest_].behind) = block;
  newest_ = block;
  ++cached_;
}

void BlockPool::uncache(int block) {
  const int before = blocks_[block].before, behind = blocks_[block].behind;
  (before < 0 ? oldest_ : blocks_[before].behind) = behind;
  (behind < 0 ? newest_ : blocks_[behind].before) = before;
  --cached_;
}

std::vector<int> BlockPool::references() const {
  std::vector<int> all(total_, 0);
  for (int block = 0; block < used_; ++block) all[block] = blocks_[block].references;
  return all;
}

}  // namespace corepipe::sim
