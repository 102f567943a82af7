// The Python module; _native.pyi documents it.
#include "binding/binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "executor/checked.h"
#include "executor/division.h"
#include "isa/isa.h"
#include "executor/kv_cache.h"
#include "linear/linear.h"
#include "isa/probe.h"
#include "rows/scan.h"

namespace corepipe {

namespace {

using namespace nb::literals;

void make_matrix(PyMatrix* self, const std::string& kind, Array<uint8_t> data, std::optional<Array<float>> scale, int n,
                 int k) {
  require(!scale || n < 0 || scale->size() >= static_cast<size_t>(n), "scale must have n elements");
  Matrix matrix(kind, data.data(), data.size(), scale ? scale->data() : nullptr, n, k);
  new (self) PyMatrix{matrix, {std::make_shared<Array<uint8_t>>(data)}};
  if (scale) self->kept.push_back(std::make_shared<Array<float>>(*scale));
}

void bind_matrix(nb::module_& m) {
  nb::class_<PyMatrix>(m, "Matrix")
      .def("__init__", &make_matrix, "kind"_a, "data"_a.noconvert(), "scale"_a.noconvert().none(), "n"_a, "k"_a)
      .def(
          "view",
          [](const PyMatrix& self, int n0, int n, int k0, int k) {
            return std::make_shared<PyMatrix>(PyMatrix{self.matrix.view(n0, n, k0, k), self.kept});
          },
          "n0"_a, "n"_a, "k0"_a, "k"_a)
      .def_prop_ro("n", [](const PyMatrix& self) { return self.matrix.n; })
      .def_prop_ro("k", [](const PyMatrix& self) { return self.matrix.k; });
}

void bind_cache(nb::module_& m) {
  nb::class_<KVCache>(m, "KVCache")
      .def(nb::init<int, int, int, int, int, const std::string&, bool, int>(), "layers"_a, "blocks"_a, "block_size"_a,
           "kv_heads"_a, "head_dim"_a, "dtype"_a, "int8"_a = false, "shared"_a = 0)
      .def_prop_ro("nbytes", [](const KVCache& self) { return self.arena().size(); })
      .def("memory", [](nb::handle_t<KVCache> self) {
        const Arena& arena = nb::cast<KVCache&>(self).arena();
        return nb::ndarray<nb::numpy, uint8_t>(arena.data(), {arena.size()}, self).cast();
      });
  nb::class_<StateCache>(m, "StateCache")
      .def(nb::init<int, int, size_t, int>(), "blocks"_a, "block_size"_a, "elements"_a, "table"_a = 0)
      .def_prop_ro("nbytes", [](const StateCache& self) { return self.arena().size(); });
}

nb::object accumulators(Array<int8_t, 2> x, const PyMatrix& matrix) {
  const size_t rows = x.shape(0), n = matrix.matrix.n, groups = matrix.matrix.groups();
  require(x.shape(1) == static_cast<size_t>(matrix.matrix.k), "x must be [M, k]");
  std::vector<int32_t> out(checked_product("the sums", {groups, rows, n, sizeof(int32_t)}) / sizeof(int32_t));
  int8_accumulators(kernels(), x.data(), static_cast<int>(rows), matrix.matrix, out.data());
  return to_numpy(std::move(out), {groups, rows, n});
}

}  // namespace

}  // namespace corepipe

NB_MODULE(_native, m) {
  using namespace corepipe;
  m.doc() = "corepipe's native executor";
  // Python drops remaining objects at exit in no particular order, which is no leak to warn of.
  nb::set_leak_warnings(false);
  m.def("isas", &available_names);
  m.def("left_out", &left_out);
  m.def("same_bits_isa", [] { return std::string(same_bits_kernels().name); });
  m.def("isa", [] { return std::string(kernels().name); });
  bind_matrix(m);
  bind_cache(m);
  bind_program(m);
  bind_executor(m);
  bind_probe(m);
  bind_simulation(m);
  m.def(
      "divide",
      [](int panels, int blocks, int threads) {
        const Division division = divide(panels, blocks, threads);
        return nb::make_tuple(division.parts, division.idle(threads));
      },
      nb::arg("panels"), nb::arg("blocks"), nb::arg("threads"));
  m.def("int8_accumulators", &accumulators, nb::arg("x").noconvert(), nb::arg("matrix"));
}
