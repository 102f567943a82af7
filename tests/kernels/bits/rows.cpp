#include "pieces.h"

namespace corepipe {

namespace {

constexpr int kWidth = 203;  // no multiple of the lanes
constexpr int kRowCount = 5;

struct Operands {
  Random random{4};
  std::vector<float> x = random.numbers(kWidth, 12.0f), y = random.numbers(kWidth), z = random.numbers(kWidth);
  std::vector<float> table = random.numbers(kRowCount * kWidth);
  std::vector<uint16_t> bf16;

  Operands() {
    for (float v : random.numbers(kWidth)) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      bf16.push_back(static_cast<uint16_t>(bits >> 16));
    }
  }
};

// fill(round, out), whose results are a piece.
template <class Fill>
Piece piece(const std::string& name, Fill&& fill) {
  Digest digest;
  for (bool round : {false, true}) {
    std::vector<float> out(kWidth);
    fill(round, out.data());
    digest.add(out);
  }
  return {"rows." + name, digest.value()};
}

}  // namespace

void add_rows(const KernelTable& kernels, std::vector<Piece>& pieces) {
  const Operands o;
  const float *x = o.x.data(), *y = o.y.data(), *z = o.z.data();
  const RowTable& t = kernels.rows;
  const std::vector<std::pair<std::string, Norm>> norms = {
      {"rms_norm", {NormKind::rms, y, nullptr, 1e-5f}},
      {"layer_norm", {NormKind::layer, y, z, 1e-5f}},
      {"unit", {NormKind::unit, nullptr, nullptr, 1e-12f}},
  };
  for (const auto& [name, norm] : norms) {
    pieces.push_back(piece(name, [&, n = norm](bool round, float* out) { t.norm(n, x, kWidth, round, out); }));
  }
  pieces.push_back(piece("rope", [&](bool round, float* out) { t.rope(x, out, kWidth, y, z, 90, round); }));
  pieces.push_back(piece("add", [&](bool round, float* out) {
    t.add(x, y, out, kWidth, round);
    t.add_stored(out, o.bf16.data(), true, out, kWidth, round);
    t.add_stored(out, z, false, out, kWidth, round);
    t.scale(out, 0.3f, out, kWidth, round);
  }));
  const std::vector<std::pair<std::string, Function>> functions = {
      {"silu", Function::silu}, {"gelu", Function::gelu},       {"gelu_tanh", Function::gelu_tanh},
      {"relu", Function::relu}, {"sigmoid", Function::sigmoid}, {"tanh", Function::tanh}};
  for (const auto& [name, function] : functions) {
    pieces.push_back(piece(name, [&, f = function](bool round, float* out) {
      t.glu(f, x, y, out, kWidth, round);
      t.activate(f, out, out, kWidth, round);
    }));
  }
  for (Pooling pooling : {Pooling::first, Pooling::second, Pooling::last, Pooling::mean, Pooling::max,
                          Pooling::mean_sqrt_len, Pooling::weighted_mean}) {
    pieces.push_back(piece("pool" + std::to_string(static_cast<int>(pooling)), [&](bool round, float* out) {
      t.pool(pooling, o.table.data(), kWidth, kRowCount, out, kWidth, round);
    }));
  }
}

}  // namespace corepipe
