#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "binding/bind_program.h"

namespace corepipe {

namespace {

using namespace nb::literals;

using PyNorm = std::optional<std::pair<Array<float>, float>>;
using PyLayerNorm = std::tuple<std::optional<Array<float>>, std::optional<Array<float>>, float>;
using PyTable = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PyRope = std::optional<std::pair<Array<float, 2>, Array<float, 2>>>;
using PyMatrices = std::vector<std::shared_ptr<PyMatrix>>;
using PySegment = std::tuple<std::shared_ptr<PyMatrix>, std::optional<Array<float>>, int>;

// The arrays that an Op points into, kept alive with the Program.
Vector vector_of(PyProgram& self, const Array<float>& array) {
  self.kept.push_back(std::make_shared<Array<float>>(array));
  return {array.data(), static_cast<int>(array.size())};
}

NormSpec norm_of(PyProgram& self, const PyNorm& norm) {
  if (!norm) return {};
  return {NormKind::rms, vector_of(self, norm->first), {}, norm->second};
}

NormSpec layer_norm_of(PyProgram& self, const PyLayerNorm& norm) {
  const auto& [gain, bias, eps] = norm;
  return {NormKind::layer, gain ? vector_of(self, *gain) : Vector{}, bias ? vector_of(self, *bias) : Vector{}, eps};
}

Function function_named(const std::optional<std::string>& name) {
  if (!name) return Function::none;
  if (*name == "silu") return Function::silu;
  if (*name == "gelu") return Function::gelu;
  if (*name == "gelu_tanh") return Function::gelu_tanh;
  if (*name == "relu") return Function::relu;
  if (*name == "sigmoid") return Function::sigmoid;
  if (*name == "tanh") return Function::tanh;
  if (*name == "clamped_swish") return Function::clamped_swish;
  throw std::invalid_argument("there is no function '" + *name + "'");
}

Pooling pooling_named(const std::string& name) {
  if (name == "first") return Pooling::first;
  if (name == "second") return Pooling::second;
  if (name == "last") return Pooling::last;
  if (name == "mean") return Pooling::mean;
  if (name == "max") return Pooling::max;
  if (name == "mean_sqrt_len") return Pooling::mean_sqrt_len;
  if (name == "weighted_mean") return Pooling::weighted_mean;
  throw std::invalid_argument("there is no pooling '" + name + "'");
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

StoredTable stored_table(PyProgram& self, const PyTable& table) {
  const bool is_bf16 = table.dtype() == nb::dtype<uint16_t>();
  if (!is_bf16 && table.dtype() != nb::dtype<float>()) {
    throw std::invalid_argument("the table must be float32, or bf16 as uint16");
  }
  self.kept.push_back(std::make_shared<PyTable>(table));
  return {table.data(), static_cast<int>(table.shape(0)), static_cast<int>(table.shape(1)), is_bf16};
}

void embed(PyProgram& self, int out, const PyTable& table) { self.program.embed(out, stored_table(self, table)); }

void add_embedding(PyProgram& self, int x, int out, const PyTable& table, int offset, const std::string& by) {
  if (by != "position" && by != "type") throw std::invalid_argument("rows are found by 'position' or 'type'");
  const RowIndex index = by == "type" ? RowIndex::type : RowIndex::position;
  self.program.add_embedding(x, out, stored_table(self, table), index, offset);
}

void first_rows(PyProgram& self, int out, const Array<float, 2>& rows) {
  self.kept.push_back(std::make_shared<Array<float, 2>>(rows));
  self.program.first_rows(out, {rows.data(), static_cast<int>(rows.size())});
}

void rms_norm(PyProgram& self, int x, int out, const Array<float>& gain, float eps, int groups) {
  self.program.norm(x, out, {NormKind::rms, vector_of(self, gain), {}, eps}, groups);
}

void layer_norm(PyProgram& self, int x, int out, const std::optional<Array<float>>& gain,
                const std::optional<Array<float>>& bias, float eps, int groups) {
  self.program.norm(x, out, layer_norm_of(self, {gain, bias, eps}), groups);
}

void append_linear(PyProgram& self, int x, const std::vector<PySegment>& segments, const PyNorm& norm,
                   const std::optional<PyLayerNorm>& layer_norm, const std::optional<std::string>& function, bool glu,
                   float factor, std::optional<int> residual, std::optional<int> outer) {
  if (norm && layer_norm) throw std::invalid_argument("a linear has one norm");
  std::vector<LinearSegment> parts;
  for (const auto& [matrix, bias, out] : segments) {
    if (!matrix) throw std::invalid_argument("a segment needs a matrix");
    self.kept.push_back(matrix);
    parts.push_back({&matrix->matrix, bias ? vector_of(self, *bias) : Vector{}, out});
  }
  LinearSurroundings around;
  around.norm = layer_norm ? layer_norm_of(self, *layer_norm) : norm_of(self, norm);
  around.function = function_named(function);
  around.glu = glu;
  around.factor = factor;
  around.residual = residual.value_or(-1);
  around.outer = outer.value_or(-1);
  self.program.linear(x, parts, around);
}

void rope(PyProgram& self, int x, int out, int head_dim, const Array<float, 2>& cos, const Array<float, 2>& sin) {
  self.program.rope(x, out, head_dim, rope_of(self, cos, sin));
}

void attention(PyProgram& self, int q, int k, int v, int out, const std::shared_ptr<KVCache>& cache, int layer, int heads,
               float scale, std::optional<int> window, const PyRope& rope, const PyNorm& q_norm, const PyNorm& k_norm,
               std::optional<float> softcap, const std::optional<Array<float>>& slopes, bool causal,
               const std::optional<Array<float>>& biases, const std::optional<Array<float>>& sinks, int table,
               bool chunked, const PyNorm& head_norm, const std::optional<Array<float>>& tempers) {
  if (softcap && !(*softcap > 0)) throw std::invalid_argument("softcap must be positive");
  AttentionOptions options;
  options.scale = scale;
  options.window = window.value_or(kNoWindow);
  options.table = table;
  options.causal = causal;
  options.softcap = softcap.value_or(0.0f);
  if (slopes) options.slopes = vector_of(self, *slopes);
  if (biases) options.biases = vector_of(self, *biases);
  if (sinks) options.sinks = vector_of(self, *sinks);
  if (rope) options.rope = rope_of(self, rope->first, rope->second);
  options.q_norm = norm_of(self, q_norm);
  options.k_norm = norm_of(self, k_norm);
  options.head_norm = norm_of(self, head_norm);
  options.chunked = chunked;
  if (tempers) options.tempers = vector_of(self, *tempers);
  if (cache) self.kept.push_back(cache);
  self.program.attention(q, k, v, out, cache.get(), layer, heads, options);
}

Scoring scoring_named(const std::string& name) {
  if (name == "of_all") return Scoring::of_all;
  if (name == "of_chosen") return Scoring::of_chosen;
  if (name == "of_near") return Scoring::of_near;
  if (name == "sigmoid") return Scoring::sigmoid;
  if (name == "sigmoid_shares") return Scoring::sigmoid_shares;
  if (name == "input_sigmoid") return Scoring::input_sigmoid;
  throw std::invalid_argument("there is no scoring '" + name + "'");
}

// biases: of no matrix, of gate and up, or of all three, [experts, n] each.
void give_biases(PyProgram& self, const std::vector<Array<float, 2>>& biases, std::vector<Expert>& experts) {
  if (biases.empty()) return;
  if (biases.size() != 2 && biases.size() != 3) throw std::invalid_argument("biases are of two matrices, or of three");
  ExpertMatrix Expert::*const matrices[] = {&Expert::gate, &Expert::up, &Expert::down};
  for (size_t i = 0; i < biases.size(); ++i) {
    self.kept.push_back(std::make_shared<Array<float, 2>>(biases[i]));
    const size_t width = biases[i].shape(1);
    for (size_t e = 0; e < experts.size(); ++e) {
      ExpertMatrix& matrix = experts[e].*matrices[i];
      if (biases[i].shape(0) != experts.size() || width != static_cast<size_t>(matrix.weight->n)) {
        throw std::invalid_argument("there must be a bias for each expert and column");
      }
      matrix.bias = biases[i].data() + e * width;
    }
  }
}

// correction: one number per expert.
Routing routing_of(PyProgram& self, int scores, int top_k, const std::string& scoring, float nearness,
                   const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor) {
  Routing routing{top_k, scoring_named(scoring), nearness};
  std::tie(routing.groups, routing.taken_groups) = groups;
  routing.factor = factor;
  if (correction) {
    if (correction->size() != static_cast<size_t>(self.program.value(scores).width)) {
      throw std::invalid_argument("there must be a correction for each expert");
    }
    routing.correction = vector_of(self, *correction).data;
  }
  return routing;
}

void append_experts(PyProgram& self, int x, int scores, int out, const PyMatrices& gate, const PyMatrices& up,
                    const PyMatrices& down, int top_k, const std::string& scoring, const std::string& function,
                    const std::vector<Array<float, 2>>& biases, float nearness,
                    const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor,
                    std::optional<int> first) {
  if (gate.size() != up.size() || gate.size() != down.size()) {
    throw std::invalid_argument("an expert has three matrices");
  }
  std::vector<Expert> experts;
  for (size_t e = 0; e < gate.size(); ++e) {
    for (const auto& matrix : {gate[e], up[e], down[e]}) {
      if (!matrix) throw std::invalid_argument("an expert has three matrices");
      self.kept.push_back(matrix);
    }
    experts.push_back({{&gate[e]->matrix}, {&up[e]->matrix}, {&down[e]->matrix}});
  }
  give_biases(self, biases, experts);
  const Routing routing = routing_of(self, scores, top_k, scoring, nearness, correction, groups, factor);
  self.program.experts(x, scores, out, std::move(experts), routing, function_named(function), first);
}

void append_gather_slots(PyProgram& self, int x, int scores, int out, std::vector<int> group, std::vector<int> bounds,
                         int top_k, const std::string& scoring, float nearness,
                         const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor) {
  const Routing routing = routing_of(self, scores, top_k, scoring, nearness, correction, groups, factor);
  self.program.gather_slots(x, scores, out, std::move(group), std::move(bounds), routing);
}

// values: q, latent and key_rope; matrices: one per head.
void latent_attention(PyProgram& self, const std::tuple<int, int, int>& values, int out,
                      const std::shared_ptr<KVCache>& cache, int layer, const PyMatrices& key_up,
                      const PyMatrices& value_up, float scale, int table) {
  if (!cache) throw std::invalid_argument("what keeps latents has a cache");
  if (key_up.size() != value_up.size()) throw std::invalid_argument("a head has two matrices");
  std::vector<LatentHead> heads;
  for (size_t h = 0; h < key_up.size(); ++h) {
    for (const auto& matrix : {key_up[h], value_up[h]}) {
      if (!matrix) throw std::invalid_argument("a head has two matrices");
      self.kept.push_back(matrix);
    }
    heads.push_back({&key_up[h]->matrix, &value_up[h]->matrix});
  }
  self.kept.push_back(cache);
  const auto [q, latent, key_rope] = values;
  self.program.latent_attention(q, latent, key_rope, out, *cache, layer, std::move(heads), scale, table);
}

using PyState = std::pair<std::shared_ptr<StateCache>, size_t>;

StatePart state_of(PyProgram& self, const PyState& state) {
  if (!state.first) throw std::invalid_argument("what is recurrent has a cache");
  self.kept.push_back(state.first);
  return {state.first.get(), state.second};
}

void convolve(PyProgram& self, int x, int out, const Array<float, 2>& weights, const std::optional<Array<float>>& bias,
              const std::optional<std::string>& function, const PyState& state) {
  self.kept.push_back(std::make_shared<Array<float, 2>>(weights));
  self.program.convolve(x, out, {weights.data(), static_cast<int>(weights.size())},
                        bias ? vector_of(self, *bias) : Vector{}, function_named(function), state_of(self, state));
}

using PyVector = Array<float>;

void scan(PyProgram& self, const std::tuple<int, int, int, int>& values, int out,
          const std::tuple<PyVector, PyVector, PyVector>& of_heads, std::pair<float, float> limits, int states,
          const PyState& state) {
  const auto& [x, b, c, dt] = values;
  const auto& [rates, dt_bias, skip] = of_heads;
  const ScanOptions options{vector_of(self, rates), vector_of(self, dt_bias), vector_of(self, skip),
                            limits.first,           limits.second,            states};
  self.program.scan({x, b, c, dt}, out, options, state_of(self, state));
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
      .def("patches", [](PyProgram& self, int out) { self.program.patches(out); }, "out"_a)
      .def("first_rows", &first_rows, "out"_a, "rows"_a.noconvert())
      .def("add_embedding", &add_embedding, "x"_a, "out"_a, "table"_a.noconvert(), "offset"_a = 0,
           "by"_a = "position")
      .def("rms_norm", &rms_norm, "x"_a, "out"_a, "gain"_a.noconvert(), "eps"_a, "groups"_a = 1)
      .def("layer_norm", &layer_norm, "x"_a, "out"_a, "gain"_a.noconvert().none(), "bias"_a.noconvert().none(), "eps"_a,
           "groups"_a = 1)
      .def("linear", &append_linear, "x"_a, "segments"_a, "norm"_a = nb::none(), "layer_norm"_a = nb::none(),
           "function"_a = nb::none(), "glu"_a = false, "factor"_a = 1.0f, "residual"_a = nb::none(),
           "outer"_a = nb::none())
      .def("rope", &rope, "x"_a, "out"_a, "head_dim"_a, "cos"_a.noconvert(), "sin"_a.noconvert())
      .def("attention", &attention, "q"_a, "k"_a, "v"_a, "out"_a, "cache"_a.none(), "layer"_a, "heads"_a, "scale"_a,
           "window"_a = nb::none(), "rope"_a = nb::none(), "q_norm"_a = nb::none(), "k_norm"_a = nb::none(),
           "softcap"_a = nb::none(), "slopes"_a = nb::none(), "causal"_a = true,
           "biases"_a = nb::none(), "sinks"_a = nb::none(), "table"_a = 0, "chunked"_a = false,
           "head_norm"_a = nb::none(), "tempers"_a = nb::none())
      .def("latent_attention", &latent_attention, "values"_a, "out"_a, "cache"_a, "layer"_a, "key_up"_a, "value_up"_a,
           "scale"_a, "table"_a = 0)
      .def("normalize",
           [](PyProgram& self, int x, int out, float eps) { self.program.norm(x, out, {NormKind::unit, {}, {}, eps}); },
           "x"_a, "out"_a, "eps"_a)
      .def("pool",
           [](PyProgram& self, const std::string& pooling, int x, int out) {
             self.program.pool(pooling_named(pooling), x, out);
           },
           "pooling"_a, "x"_a, "out"_a)
      .def("activation",
           [](PyProgram& self, const std::string& function, int x, int out) {
             self.program.activate(function_named(function), x, out);
           },
           "function"_a, "x"_a, "out"_a)
      .def("glu",
           [](PyProgram& self, int gate, int up, int out, const std::string& function) {
             self.program.glu(function_named(function), gate, up, out);
           },
           "gate"_a, "up"_a, "out"_a, "function"_a = "silu")
      .def("scale",
           [](PyProgram& self, int x, float factor, int out, std::optional<int> by) {
             self.program.scale(x, factor, by.value_or(-1), out);
           },
           "x"_a, "factor"_a, "out"_a, "by"_a = nb::none())
      .def("experts", &append_experts, "x"_a, "scores"_a, "out"_a, "gate"_a, "up"_a, "down"_a, "top_k"_a, "scoring"_a,
           "function"_a = "silu", "biases"_a.noconvert() = std::vector<Array<float, 2>>{}, "nearness"_a = 0.0f,
           "correction"_a.noconvert() = nb::none(), "groups"_a = std::pair<int, int>(1, 1), "factor"_a = 1.0f,
           "first"_a = nb::none())
      .def("gather_slots", &append_gather_slots, "x"_a, "scores"_a, "out"_a, "group"_a, "bounds"_a, "top_k"_a,
           "scoring"_a, "nearness"_a = 0.0f, "correction"_a.noconvert() = nb::none(),
           "groups"_a = std::pair<int, int>(1, 1), "factor"_a = 1.0f)
      .def("clamp", [](PyProgram& self, int x, float limit, int out) { self.program.clamp(x, limit, out); }, "x"_a,
           "limit"_a, "out"_a)
      .def("convolve", &convolve, "x"_a, "out"_a, "weights"_a.noconvert(), "bias"_a.noconvert().none(), "function"_a.none(),
           "state"_a)
      .def("scan", &scan, "values"_a, "out"_a, "of_heads"_a, "limits"_a, "states"_a, "state"_a)
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
