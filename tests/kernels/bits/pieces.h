// What a table of kernels computes, in pieces whose bits are compared.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "isa/isa.h"

namespace corepipe {

// splitmix64 (Steele, Lea & Flood 2014), and numbers made of it by operations that are exact everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // In [-1, 1), a multiple of 2^-23.
  float number() { return static_cast<float>(static_cast<int32_t>(bits() >> 40) - (1 << 23)) * 0x1p-23f; }

  std::vector<float> numbers(size_t count, float factor = 1.0f) {
    std::vector<float> out(count);
    for (float& x : out) x = factor * number();
    return out;
  }

  std::vector<uint8_t> bytes(size_t count) {
    std::vector<uint8_t> out(count);
    for (uint8_t& x : out) x = static_cast<uint8_t>(bits());
    return out;
  }

 private:
  uint64_t state_;
};

// FNV-1a over the bits of all results of a piece.
class Digest {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    for (T value : values) {
      uint64_t word = 0;
      std::memcpy(&word, &value, sizeof value);
      hash_ = (hash_ ^ word) * 0x100000001b3u;
    }
  }

  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

struct Piece {
  std::string name;
  uint64_t digest;
};

void add_linears(const KernelTable& kernels, std::vector<Piece>& pieces);
void add_attention(const KernelTable& kernels, std::vector<Piece>& pieces);
void add_rows(const KernelTable& kernels, std::vector<Piece>& pieces);
void add_sampler(const KernelTable& kernels, std::vector<Piece>& pieces);

}  // namespace corepipe
