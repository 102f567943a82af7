#include "linear/matrix.h"


#include "executor/checked.h"

namespace corepipe {

namespace {

Kind kind_named(const std::string& name) {
  std::string known;
  for (int i = 0; i < kKinds; ++i) {
    if (name == kStorages[i].name) return static_cast<Kind>(i);
    known += (i == 0 ? "" : ", ") + std::string(kStorages[i].name);
  }
  throw std::invalid_argument("unknown matrix kind '" + name + "'; use one of " + known);
}

}  // namespace

Matrix::Matrix(const std::string& kind_name, const uint8_t* bytes, size_t size, const float* scales, int rows, int columns)
    : kind(kind_named(kind_name)), data(bytes), panel_stride(0), scale(scales), n(rows), k(columns) {
  require(n >= 1 && k >= 1, "a matrix needs n >= 1 and k >= 1");
  const bool scaled = kind == Kind::int8 || kind == Kind::int8w;
  require(scaled == (scale != nullptr), "kind '" + kind_name + "' " + (scaled ? "needs" : "takes no") + " scales");
  panel_stride = groups() * storage_of(kind).group_bytes();
  const size_t needed = checked_product("a matrix", {size_t(panels()), size_t(panel_stride)});
  require(size >= needed, "a packed '" + kind_name + "' matrix of this shape has " + std::to_string(needed) +
                              " bytes, got " + std::to_string(size));
}

Matrix Matrix::view(int n0, int rows, int k0, int columns) const {
  require(n0 >= 0 && rows >= 1 && rows <= n - n0 && k0 >= 0 && columns >= 1 && columns <= k - k0,
          "a view must lie within its matrix");
  require(n0 % kPanel == 0 && k0 % kGroup == 0, "a view starts at a multiple of 32 in n and of 64 in k");
  Matrix part = *this;
  part.data = panel(n0 / kPanel) + k0 / kGroup * storage_of(kind).group_bytes();
  part.scale = scale == nullptr ? nullptr : scale + n0;
  part.n = rows;
  part.k = columns;
  return part;
}

}  // namespace corepipe
