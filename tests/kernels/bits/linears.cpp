#include "linear/linear.h"
#include "pieces.h"

namespace corepipe {

namespace {

struct Shape {
  int rows, n, k;
};

// A row alone, blocks that are full and that are not, a part of a panel and of a group.
constexpr Shape kShapes[] = {{1, 33, 70}, {2, 64, 128}, {3, 40, 256}, {6, 64, 640}, {9, 96, 200}, {45, 50, 1030}};

// fp16 numbers: scales and minima of 2^-8 to 2^-7 with a sign, or zero points that are powers of two.
uint16_t half(Random& random, bool zero_point) {
  const uint64_t bits = random.bits();
  return static_cast<uint16_t>(zero_point ? 0xbc00 + (bits & 3) * 0x400 : (bits & 0x8000) | 0x1c00 | (bits & 0x3ff));
}

// Packed weights: whatever the bytes are, of the kinds of integers; numbers in [-1, 1) of the others.
std::vector<uint8_t> weights(Random& random, Kind kind, int n, int k) {
  const Storage& storage = storage_of(kind);
  const size_t group_bytes = storage.group_bytes(), width = storage.bits / 8;
  const size_t groups = size_t((n + kPanel - 1) / kPanel) * ((k + kGroup - 1) / kGroup);
  std::vector<uint8_t> packed = random.bytes(groups * group_bytes);
  for (size_t at = 0; width > 1 && at < packed.size(); at += width) {
    const float x = random.number();
    std::memcpy(packed.data() + at, reinterpret_cast<const char*>(&x) + 4 - width, width);  // bf16: the upper half
  }
  const size_t scales = storage.group == 0 ? 0 : kPanel * (kGroup / storage.group);
  const size_t halves = storage.offsets == Offsets::none ? scales : 2 * scales;
  for (size_t at = 0; at < packed.size(); at += group_bytes) {
    for (size_t i = 0; i < halves; ++i) {
      const uint16_t x = half(random, i >= scales && storage.offsets == Offsets::zeros);
      std::memcpy(packed.data() + at + 2 * i, &x, 2);
    }
  }
  return packed;
}

bool is_scaled(Kind kind) { return kind == Kind::int8 || kind == Kind::int8w; }

struct Weights {
  std::vector<uint8_t> packed;
  std::vector<float> scale;
  Matrix matrix;

  Weights(Random& random, Kind kind, int n, int k)
      : packed(weights(random, kind, n, k)),
        scale(random.numbers(n, 0.01f)),
        matrix(storage_of(kind).name, packed.data(), packed.size(), is_scaled(kind) ? scale.data() : nullptr, n, k) {}
};

class Bench {
 public:
  explicit Bench(const KernelTable& kernels) : kernels_(kernels), pool_(2), scratch_(2) {}

  void plain(Kind kind, const Shape& shape, Digest& digest) {
    const Weights w(random_, kind, shape.n, shape.k);
    const std::vector<float> x = random_.numbers(int64_t{shape.rows} * shape.k);
    run(x, shape, {&w.matrix}, {}, digest);
  }

  // A row normalised before the product; gate and up, or a residual, after it.
  void fused(Kind kind, Function function, Digest& digest) {
    const Shape shape{7, 80, 192};
    const Weights gate(random_, kind, shape.n, shape.k), up(random_, kind, shape.n, shape.k);
    const std::vector<float> x = random_.numbers(int64_t{shape.rows} * shape.k), gain = random_.numbers(shape.k);
    const std::vector<float> residual = random_.numbers(int64_t{shape.rows} * shape.n);
    Linear op{};
    op.norm = {NormKind::rms, gain.data(), nullptr, 1e-5f};
    op.round_bf16 = true;
    if (function == Function::none) {
      op.residual = residual.data(), op.residual_stride = shape.n;
      return run(x, shape, {&gate.matrix}, op, digest);
    }
    op.function = function, op.glu = true;
    run(x, shape, {&gate.matrix, &up.matrix}, op, digest);
  }

  // Sums of each 64 of k alone.
  void sums(const Shape& shape, Digest& digest) {
    const Weights w(random_, Kind::int8, shape.n, shape.k);
    std::vector<int8_t> x(int64_t{shape.rows} * shape.k);
    for (int8_t& q : x) q = static_cast<int8_t>(random_.bits() % 255 - 127);
    std::vector<int32_t> out(int64_t{w.matrix.groups()} * shape.rows * shape.n);
    int8_accumulators(kernels_, x.data(), shape.rows, w.matrix, out.data());
    digest.add(out);
  }

 private:
  void run(const std::vector<float>& x, const Shape& shape, std::vector<const Matrix*> matrices, Linear op,
           Digest& digest) {
    const std::vector<float> bias = random_.numbers(shape.n);
    std::vector<float> out(int64_t{shape.rows} * shape.n);
    std::vector<Segment> segments;
    for (const Matrix* matrix : matrices) segments.push_back({matrix, bias.data(), out.data(), shape.n});
    op.x = x.data(), op.x_stride = shape.k, op.rows = shape.rows, op.k = shape.k;
    op.segments = segments.data(), op.segment_count = static_cast<int>(segments.size());
    linear(kernels_, pool_, scratch_, op);
    digest.add(out);
  }

  const KernelTable& kernels_;
  Pool pool_;
  Scratch scratch_;
  Random random_{1};
};

}  // namespace

void add_linears(const KernelTable& kernels, std::vector<Piece>& pieces) {
  Bench bench(kernels);
  Digest sums;
  for (const Shape& shape : kShapes) bench.sums(shape, sums);
  pieces.push_back({"linear.int8.sums", sums.value()});
  for (int i = 0; i < kKinds; ++i) {
    const Kind kind = static_cast<Kind>(i);
    const std::string name = std::string("linear.") + storage_of(kind).name;
    Digest plain, residual, glu;
    for (const Shape& shape : kShapes) bench.plain(kind, shape, plain);
    bench.fused(kind, Function::none, residual);
    bench.fused(kind, Function::silu, glu);
    pieces.push_back({name, plain.value()});
    pieces.push_back({name + ".residual", residual.value()});
    pieces.push_back({name + ".glu", glu.value()});
  }
}

}  // namespace corepipe
