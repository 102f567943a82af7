#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "binding/binding.h"
#include "executor/checked.h"
#include "executor/program.h"

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
template <class... Shape>
Vector vector_of(Program& self, const nb::ndarray<const float, Shape...>& array) {
  self.hold(std::make_shared<nb::ndarray<const float, Shape...>>(array));
  return {array.data(), static_cast<int>(array.size())};
}

Vector vector_of(Program& self, const std::optional<Array<float>>& array) {
  return array ? vector_of(self, *array) : Vector{};
}

// The matrix, which an Op with this `rule` needs.
const Matrix* matrix_of(Program& self, const std::shared_ptr<PyMatrix>& matrix, const char* rule) {
  require(matrix != nullptr, rule);
  self.hold(matrix);
  return &matrix->matrix;
}

NormSpec norm_of(Program& self, const PyNorm& norm) {
  if (!norm) return {};
  return {NormKind::rms, vector_of(self, norm->first), {}, norm->second};
}

NormSpec layer_norm_of(Program& self, const PyLayerNorm& norm) {
  const auto& [gain, bias, eps] = norm;
  return {NormKind::layer, vector_of(self, gain), vector_of(self, bias), eps};
}

// The value with this name, of `what`.
template <class T>
T named(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, T>> values) {
  for (const auto& [known, value] : values) {
    if (name == known) return value;
  }
  throw std::invalid_argument("there is no " + std::string(what) + " '" + name + "'");
}

Function function_named(const std::optional<std::string>& name) {
  if (!name) return Function::none;
  return named<Function>("function", *name,
                         {{"silu", Function::silu}, {"gelu", Function::gelu}, {"gelu_tanh", Function::gelu_tanh},
                          {"relu", Function::relu}, {"sigmoid", Function::sigmoid}, {"tanh", Function::tanh},
                          {"clamped_swish", Function::clamped_swish}});
}

Pooling pooling_named(const std::string& name) {
  return named<Pooling>("pooling", name,
                        {{"first", Pooling::first}, {"second", Pooling::second}, {"last", Pooling::last},
                         {"mean", Pooling::mean}, {"max", Pooling::max}, {"mean_sqrt_len", Pooling::mean_sqrt_len},
                         {"weighted_mean", Pooling::weighted_mean}});
}

RopeTable rope_of(Program& self, const Array<float, 2>& cos, const Array<float, 2>& sin) {
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin differ in shape");
  return {vector_of(self, cos).data, vector_of(self, sin).data, static_cast<int>(cos.shape(0)),
          static_cast<int>(cos.shape(1))};
}

Rows rows_named(const std::string& name) {
  if (name == "tokens") return Rows::tokens;
  if (name == "logits") return Rows::logits;
  throw std::invalid_argument("rows must be 'tokens' or 'logits', not '" + name + "'");
}

StoredTable stored_table(Program& self, const PyTable& table) {
  const bool is_bf16 = table.dtype() == nb::dtype<uint16_t>();
  require(is_bf16 || table.dtype() == nb::dtype<float>(), "the table must be float32, or bf16 as uint16");
  self.hold(std::make_shared<PyTable>(table));
  return {table.data(), static_cast<int>(table.shape(0)), static_cast<int>(table.shape(1)), is_bf16};
}

void embed(Program& self, int out, const PyTable& table) { self.embed(out, stored_table(self, table)); }

void add_embedding(Program& self, int x, int out, const PyTable& table, int offset, const std::string& by) {
  if (by != "position" && by != "type") throw std::invalid_argument("rows are found by 'position' or 'type'");
  const RowIndex index = by == "type" ? RowIndex::type : RowIndex::position;
  self.add_embedding(x, out, stored_table(self, table), index, offset);
}

void first_rows(Program& self, int out, const Array<float, 2>& rows) {
  self.first_rows(out, vector_of(self, rows));
}

void rms_norm(Program& self, int x, int out, const Array<float>& gain, float eps, int groups) {
  self.norm(x, out, {NormKind::rms, vector_of(self, gain), {}, eps}, groups);
}

void layer_norm(Program& self, int x, int out, const std::optional<Array<float>>& gain,
                const std::optional<Array<float>>& bias, float eps, int groups) {
  self.norm(x, out, layer_norm_of(self, {gain, bias, eps}), groups);
}

void append_linear(Program& self, int x, const std::vector<PySegment>& segments, const PyNorm& norm,
                   const std::optional<PyLayerNorm>& layer_norm, const std::optional<std::string>& function, bool glu,
                   float factor, std::optional<int> residual, std::optional<int> outer) {
  require(!norm || !layer_norm, "a linear has one norm");
  std::vector<LinearSegment> parts;
  for (const auto& [matrix, bias, out] : segments) {
    parts.push_back({matrix_of(self, matrix, "a segment needs a matrix"), vector_of(self, bias), out});
  }
  LinearSurroundings around;
  around.norm = layer_norm ? layer_norm_of(self, *layer_norm) : norm_of(self, norm);
  around.function = function_named(function);
  around.glu = glu;
  around.factor = factor;
  around.residual = residual.value_or(-1);
  around.outer = outer.value_or(-1);
  self.linear(x, parts, around);
}

void rope(Program& self, int x, int out, int head_dim, const Array<float, 2>& cos, const Array<float, 2>& sin) {
  self.rope(x, out, head_dim, rope_of(self, cos, sin));
}

void attention(Program& self, int q, int k, int v, int out, const std::shared_ptr<KVCache>& cache, int layer, int heads,
               float scale, std::optional<int> window, const PyRope& rope, const PyNorm& q_norm, const PyNorm& k_norm,
               std::optional<float> softcap, const std::optional<Array<float>>& slopes, bool causal,
               const std::optional<Array<float>>& biases, const std::optional<Array<float>>& sinks, int table,
               bool chunked, const PyNorm& head_norm, const std::optional<Array<float>>& tempers) {
  require(!softcap || *softcap > 0, "softcap must be positive");
  AttentionOptions options;
  options.scale = scale;
  options.window = window.value_or(kNoWindow);
  options.table = table;
  options.causal = causal;
  options.softcap = softcap.value_or(0.0f);
  options.slopes = vector_of(self, slopes);
  options.biases = vector_of(self, biases);
  options.sinks = vector_of(self, sinks);
  if (rope) options.rope = rope_of(self, rope->first, rope->second);
  options.q_norm = norm_of(self, q_norm);
  options.k_norm = norm_of(self, k_norm);
  options.head_norm = norm_of(self, head_norm);
  options.chunked = chunked;
  options.tempers = vector_of(self, tempers);
  if (cache) self.hold(cache);
  self.attention(q, k, v, out, cache.get(), layer, heads, options);
}

Scoring scoring_named(const std::string& name) {
  return named<Scoring>("scoring", name,
                        {{"of_all", Scoring::of_all}, {"of_chosen", Scoring::of_chosen}, {"of_near", Scoring::of_near},
                         {"sigmoid", Scoring::sigmoid}, {"sigmoid_shares", Scoring::sigmoid_shares},
                         {"input_sigmoid", Scoring::input_sigmoid}});
}

// biases: of no matrix, of gate and up, or of all three, [experts, n] each.
void give_biases(Program& self, const std::vector<Array<float, 2>>& biases, std::vector<Expert>& experts) {
  if (biases.empty()) return;
  require(biases.size() == 2 || biases.size() == 3, "biases are of two matrices, or of three");
  ExpertMatrix Expert::*const matrices[] = {&Expert::gate, &Expert::up, &Expert::down};
  for (size_t i = 0; i < biases.size(); ++i) {
    const float* bias = vector_of(self, biases[i]).data;
    const size_t width = biases[i].shape(1);
    for (size_t e = 0; e < experts.size(); ++e) {
      ExpertMatrix& matrix = experts[e].*matrices[i];
      require(biases[i].shape(0) == experts.size() && width == static_cast<size_t>(matrix.weight->n),
              "there must be a bias for each expert and column");
      matrix.bias = bias + e * width;
    }
  }
}

// correction: one number per expert.
Routing routing_of(Program& self, int scores, int top_k, const std::string& scoring, float nearness,
                   const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor) {
  Routing routing{top_k, scoring_named(scoring), nearness};
  std::tie(routing.groups, routing.taken_groups) = groups;
  routing.factor = factor;
  if (correction) {
    require(correction->size() == static_cast<size_t>(self.value(scores).width),
            "there must be a correction for each expert");
    routing.correction = vector_of(self, *correction).data;
  }
  return routing;
}

void append_experts(Program& self, int x, int scores, int out, const PyMatrices& gate, const PyMatrices& up,
                    const PyMatrices& down, int top_k, const std::string& scoring, const std::string& function,
                    const std::vector<Array<float, 2>>& biases, float nearness,
                    const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor,
                    std::optional<int> first) {
  const char* const rule = "an expert has three matrices";
  require(gate.size() == up.size() && gate.size() == down.size(), rule);
  std::vector<Expert> experts;
  for (size_t e = 0; e < gate.size(); ++e) {
    experts.push_back(
        {{matrix_of(self, gate[e], rule)}, {matrix_of(self, up[e], rule)}, {matrix_of(self, down[e], rule)}});
  }
  give_biases(self, biases, experts);
  const Routing routing = routing_of(self, scores, top_k, scoring, nearness, correction, groups, factor);
  self.experts(x, scores, out, std::move(experts), routing, function_named(function), first);
}

void append_gather_slots(Program& self, int x, int scores, int out, std::vector<int> group, std::vector<int> bounds,
                         int top_k, const std::string& scoring, float nearness,
                         const std::optional<Array<float>>& correction, std::pair<int, int> groups, float factor) {
  const Routing routing = routing_of(self, scores, top_k, scoring, nearness, correction, groups, factor);
  self.gather_slots(x, scores, out, std::move(group), std::move(bounds), routing);
}

// values: q, latent and key_rope; matrices: one per head.
void latent_attention(Program& self, const std::tuple<int, int, int>& values, int out,
                      const std::shared_ptr<KVCache>& cache, int layer, const PyMatrices& key_up,
                      const PyMatrices& value_up, float scale, int table) {
  require(cache != nullptr, "what keeps latents has a cache");
  const char* const rule = "a head has two matrices";
  require(key_up.size() == value_up.size(), rule);
  std::vector<LatentHead> heads;
  for (size_t h = 0; h < key_up.size(); ++h) {
    heads.push_back({matrix_of(self, key_up[h], rule), matrix_of(self, value_up[h], rule)});
  }
  self.hold(cache);
  const auto [q, latent, key_rope] = values;
  self.latent_attention(q, latent, key_rope, out, *cache, layer, std::move(heads), scale, table);
}

using PyState = std::pair<std::shared_ptr<StateCache>, size_t>;

StatePart state_of(Program& self, const PyState& state) {
  require(state.first != nullptr, "what is recurrent has a cache");
  self.hold(state.first);
  return {state.first.get(), state.second};
}

void convolve(Program& self, int x, int out, const Array<float, 2>& weights, const std::optional<Array<float>>& bias,
              const std::optional<std::string>& function, const PyState& state) {
  self.convolve(x, out, vector_of(self, weights), vector_of(self, bias), function_named(function),
                state_of(self, state));
}

using PyVector = Array<float>;

void scan(Program& self, const std::tuple<int, int, int, int>& values, int out,
          const std::tuple<PyVector, PyVector, PyVector>& of_heads, std::pair<float, float> limits, int states,
          const PyState& state) {
  const auto& [x, b, c, dt] = values;
  const auto& [rates, dt_bias, skip] = of_heads;
  const ScanOptions options{vector_of(self, rates), vector_of(self, dt_bias), vector_of(self, skip),
                            limits.first,           limits.second,            states};
  self.scan({x, b, c, dt}, out, options, state_of(self, state));
}

// One array for each value: [max_rows, bytes of a row].
nb::list memory(nb::handle_t<Program> self) {
  const Program& program = nb::cast<Program&>(self);
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
  nb::class_<Program>(m, "Program")
      .def(nb::init<std::vector<int>, int, bool>(), "widths"_a, "max_rows"_a, "round_bf16"_a)
      .def("memory", &memory)
      .def("embed", &embed, "out"_a, "table"_a.noconvert())
      .def("patches", &Program::patches, "out"_a)
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
           [](Program& self, int x, int out, float eps) { self.norm(x, out, {NormKind::unit, {}, {}, eps}); },
           "x"_a, "out"_a, "eps"_a)
      .def("pool",
           [](Program& self, const std::string& pooling, int x, int out) {
             self.pool(pooling_named(pooling), x, out);
           },
           "pooling"_a, "x"_a, "out"_a)
      .def("activation",
           [](Program& self, const std::string& function, int x, int out) {
             self.activate(function_named(function), x, out);
           },
           "function"_a, "x"_a, "out"_a)
      .def("glu",
           [](Program& self, int gate, int up, int out, const std::string& function) {
             self.glu(function_named(function), gate, up, out);
           },
           "gate"_a, "up"_a, "out"_a, "function"_a = "silu")
      .def("scale",
           [](Program& self, int x, float factor, int out, std::optional<int> by) {
             self.scale(x, factor, by.value_or(-1), out);
           },
           "x"_a, "factor"_a, "out"_a, "by"_a = nb::none())
      .def("experts", &append_experts, "x"_a, "scores"_a, "out"_a, "gate"_a, "up"_a, "down"_a, "top_k"_a, "scoring"_a,
           "function"_a = "silu", "biases"_a.noconvert() = std::vector<Array<float, 2>>{}, "nearness"_a = 0.0f,
           "correction"_a.noconvert() = nb::none(), "groups"_a = std::pair<int, int>(1, 1), "factor"_a = 1.0f,
           "first"_a = nb::none())
      .def("gather_slots", &append_gather_slots, "x"_a, "scores"_a, "out"_a, "group"_a, "bounds"_a, "top_k"_a,
           "scoring"_a, "nearness"_a = 0.0f, "correction"_a.noconvert() = nb::none(),
           "groups"_a = std::pair<int, int>(1, 1), "factor"_a = 1.0f)
      .def("clamp", &Program::clamp, "x"_a, "limit"_a, "out"_a)
      .def("convolve", &convolve, "x"_a, "out"_a, "weights"_a.noconvert(), "bias"_a.noconvert().none(), "function"_a.none(),
           "state"_a)
      .def("scan", &scan, "values"_a, "out"_a, "of_heads"_a, "limits"_a, "states"_a, "state"_a)
      .def("add", &Program::add, "a"_a, "b"_a, "out"_a)
      .def("select_rows", &Program::select_rows, "x"_a, "out"_a)
      .def("all_reduce", &Program::all_reduce, "x"_a, "out"_a, "group"_a)
      .def("all_gather", &Program::all_gather, "x"_a, "out"_a, "group"_a, "widths"_a)
      .def("send",
           [](Program& self, int x, int peer, const std::string& rows) {
             self.send(x, peer, rows_named(rows));
           },
           "x"_a, "peer"_a, "rows"_a = "tokens")
      .def("receive",
           [](Program& self, int out, int peer, const std::string& rows) {
             self.receive(out, peer, rows_named(rows));
           },
           "out"_a, "peer"_a, "rows"_a = "tokens");
}

}  // namespace corepipe
