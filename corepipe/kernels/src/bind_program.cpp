#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind_program.h"

namespace corepipe {

namespace {

using namespace nb::literals;

using PyNorm = std::optional<std::pair<Array<float>, float>>;
using PyRope = std::optional<std::pair<Array<float, 2>, Array<float, 2>>>;
using PySegment = std::tuple<std::shared_ptr<PyMatrix>, std::optional<Array<float>>, int>;

// The arrays behind an Op, kept alive with the Program.
Vector vector_of(PyProgram& self, const Array<float>& array) {
  self.kept.push_back(std::make_shared<Array<float>>(array));
  return {array.data(), static_cast<int>(array.size())};
}

NormSpec norm_of(PyProgram& self, const PyNorm& norm) {
  if (!norm) return {};
  return {vector_of(self, norm->first), norm->second};
}

RopeTable rope_of(PyProgram& self, const Array<float, 2>& cos, const Array<float, 2>& sin) {
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
    throw std::invalid_argument("cos and sin differ in shape");
  }
  self.kept.push_back(std::make_shared<Array<float, 2>>(cos));
  self.kept.push_back(std::make_shared<Array<float, 2>>(sin));
  return {cos.data(), sin.data(), static_cast<int>(cos.shape(0)), static_cast<int>(cos.shape(1))};
}

Rows rows_named(const std::string& name) {
  if (name == "tokens") return Rows::tokens;
  if (name == "logits") return Rows::logits;
  throw std::invalid_argument("rows must be 'tokens' or 'logits', not '" + name + "'");
}

void embed(PyProgram& self, int out, nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu> table) {
  const bool is_bf16 = table.dtype() == nb::dtype<uint16_t>();
  if (!is_bf16 && table.dtype() != nb::dtype<float>()) {
    throw std::invalid_argument("the table must be float32, or bf16 as uint16");
  }
  self.kept.push_back(std::make_shared<decltype(table)>(table));
  self.program.embed(out, table.data(), static_cast<int>(table.shape(0)), static_cast<int>(table.shape(1)), is_bf16);
}

void rms_norm(PyProgram& self, int x, int out, const Array<float>& gain, float eps) {
  self.program.rms_norm(x, out, {vector_of(self, gain), eps});
}

void append_linear(PyProgram& self, int x, const std::vector<PySegment>& segments, const PyNorm& norm,
            std::optional<std::pair<int, int>> residual, bool glu) {
  std::vector<LinearSegment> parts;
  for (const auto& [matrix, bias, out] : segments) {
    if (!matrix) throw std::invalid_argument("a segment needs a matrix");
    self.kept.push_back(matrix);
    parts.push_back({&matrix->matrix, bias ? vector_of(self, *bias) : Vector{}, out});
  }
  self.program.linear(x, parts, norm_of(self, norm), residual ? &*residual : nullptr, glu);
}

void rope(PyProgram& self, int x, int out, int head_dim, const Array<float, 2>& cos, const Array<float, 2>& sin) {
  self.program.rope(x, out, head_dim, rope_of(self, cos, sin));
}

void attention(PyProgram& self, int q, int k, int v, int out, std::shared_ptr<KVCache> cache, int layer, int heads,
               float scale, std::optional<int> window, const PyRope& rope, const PyNorm& q_norm, const PyNorm& k_norm) {
  const RopeTable table = rope ? rope_of(self, rope->first, rope->second) : RopeTable{};
  self.kept.push_back(cache);
  self.program.attention(q, k, v, out, *cache, layer, heads, scale, window.value_or(kNoWindow), table,
                         norm_of(self, q_norm), norm_of(self, k_norm));
}

// One array for each value: [max_rows, bytes of a row].
nb::list memory(nb::handle_t<PyProgram> self) {
  const Program& program = nb::cast<PyProgram&>(self).program;
  nb::list arrays;
  for (int i = 0; i < program.values(); ++i) {
    const Value& value = program.value(i);
    const size_t shape[2] = {static_cast<size_t>(program.max_rows), value.width * sizeof(float)};
    const int64_t strides[2] = {static_cast<int64_t>(value.stride * sizeof(float)), 1};
    nb::ndarray<nb::numpy, uint8_t> array(value.data, 2, shape, self, strides);
    arrays.append(array.cast());
  }
  return arrays;
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<PyProgram>(m, "Program")
      .def(nb::init<std::vector<int>, int, bool>(), "widths"_a, "max_rows"_a, "round_bf16"_a)
      .def("memory", &memory)
      .def("embed", &embed, "out"_a, "table"_a.noconvert())
      .def("rms_norm", &rms_norm, "x"_a, "out"_a, "gain"_a.noconvert(), "eps"_a)
      .def("linear", &append_linear, "x"_a, "segments"_a, "norm"_a = nb::none(), "residual"_a = nb::none(), "glu"_a = false)
      .def("rope", &rope, "x"_a, "out"_a, "head_dim"_a, "cos"_a.noconvert(), "sin"_a.noconvert())
      .def("attention", &attention, "q"_a, "k"_a, "v"_a, "out"_a, "cache"_a, "layer"_a, "heads"_a, "scale"_a,
           "window"_a = nb::none(), "rope"_a = nb::none(), "q_norm"_a = nb::none(), "k_norm"_a = nb::none())
      .def("glu", [](PyProgram& self, int gate, int up, int out) { self.program.glu(gate, up, out); }, "gate"_a,
           "up"_a, "out"_a)
      .def("add", [](PyProgram& self, int a, int b, int out) { self.program.add(a, b, out); }, "a"_a, "b"_a, "out"_a)
      .def("select_rows", [](PyProgram& self, int x, int out) { self.program.select_rows(x, out); }, "x"_a, "out"_a)
      .def("all_reduce",
           [](PyProgram& self, int x, int out, std::vector<int> group) { self.program.all_reduce(x, out, group); },
           "x"_a, "out"_a, "group"_a)
      .def("all_gather",
           [](PyProgram& self, int x, int out, std::vector<int> group, std::vector<int> widths) {
             self.program.all_gather(x, out, group, widths);
           },
           "x"_a, "out"_a, "group"_a, "widths"_a)
      .def("send",
           [](PyProgram& self, int x, int peer, const std::string& rows) {
             self.program.send(x, peer, rows_named(rows));
           },
           "x"_a, "peer"_a, "rows"_a = "tokens")
      .def("receive",
           [](PyProgram& self, int out, int peer, const std::string& rows) {
             self.program.receive(out, peer, rows_named(rows));
           },
           "out"_a, "peer"_a, "rows"_a = "tokens");
}

}  // namespace corepipe
