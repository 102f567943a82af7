// Shared by the files of the Python binding.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "linear/matrix.h"

namespace corepipe {

namespace nb = nanobind;

template <class T, int kDimensions = 1>
using Array = nb::ndarray<const T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

// A Matrix with the arrays it points into.
struct PyMatrix {
  Matrix matrix;
  std::vector<std::shared_ptr<void>> kept;
};

// Hands a vector to numpy without copying.
template <class T>
nb::object to_numpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(owned->data(), shape, owner).cast();
}

void bind_program(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_simulation(nb::module_& m);

}  // namespace corepipe
