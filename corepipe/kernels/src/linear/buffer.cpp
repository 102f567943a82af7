#include "linear/buffer.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace corepipe {

Buffer::~Buffer() { std::free(data_); }

uint8_t* Buffer::reserve(size_t bytes) {
  if (bytes <= size_) return data_;
  constexpr size_t huge_page = size_t{2} << 20;
  const size_t alignment = bytes >= huge_page ? huge_page : 64;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, size) != 0) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == huge_page) madvise(data, size, MADV_HUGEPAGE);  // a hint: slower without, not wrong
#endif
  std::free(data_);
  data_ = static_cast<uint8_t*>(data);
  size_ = size;
  return data_;
}

}  // namespace corepipe
