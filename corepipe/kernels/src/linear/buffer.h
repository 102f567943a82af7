// Working memory of products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corepipe {

// Aligned memory that grows and is never freed before the end.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // At least `bytes`, aligned to 64; its content is lost when it grows.  Throws std::bad_alloc.
  uint8_t* reserve(size_t bytes);
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace corepipe
