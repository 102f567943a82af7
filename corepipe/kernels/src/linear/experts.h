// A mixture of experts: which of them each row takes, and what they make of it.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/linear.h"
#include "linear/matrix.h"
#include "rows/row_table.h"

namespace corepipe {

struct Run;

// What a row's scores weigh the experts by that it takes: softmax of all scores; of those of these experts; of each
// expert by itself, of the scores near its own, without those of the experts taken before it; or each score's sigmoid,
// as it is or by the sum of those of these experts.  input_sigmoid: each score's, which multiplies what the expert takes,
// not what it makes.
enum class Scoring { of_all, of_chosen, of_near, sigmoid, sigmoid_shares, input_sigmoid };

// nearness: of_near, by what part of the larger of the two sizes a score may be less than the expert's.  correction:
// sigmoid, what is added to an expert's for the choice alone.  groups: experts are in so many equal ones, of which a row
// takes those of the `taken_groups` that have the largest expert, or, of sigmoids, the largest two together.  factor:
// of all weights.
struct Routing {
  int top_k;
  Scoring scoring;
  float nearness = 0;
  const float* correction = nullptr;  // [experts], or null
  int groups = 1, taken_groups = 1;
  float factor = 1;

  // Whether experts are chosen by sigmoids.
  bool by_sigmoid() const { return scoring == Scoring::sigmoid || scoring == Scoring::sigmoid_shares; }
  bool weighs_inputs() const { return scoring == Scoring::input_sigmoid; }
};

struct ExpertMatrix {
  const Matrix* weight;
  const float* bias = nullptr;  // [n], or null
};

// An expert makes down(function(gate(x)) * up(x)).
struct Expert {
  ExpertMatrix gate, up, down;
};

// Rows and the scores by which each takes some of so many experts.  Strides are in elements.
struct Choice {
  Routing routing;
  int experts;
  int rows;
  const float* scores;  // [rows][experts]
  int64_t scores_stride;
};

// out = round(the sum over the `top_k` experts of the taken groups whose scores are highest of weight * round(down(...))), added in that
// order; of equal scores the first comes first.  Where inputs are weighed, experts take round(weight * x), and what they
// make is added as it is.  A row whose scores are not all finite becomes NaN.  All experts have
// the same shapes.  out is not x.
// Of a core that has some of the experts, from `first` on, out has what these make, neither weighed nor added: a row's
// for the i-th expert that it takes at i * n; the places of other cores' experts are left as they were.
struct Mixture : Choice {
  const std::vector<Expert>* own;
  int first;
  bool slots;
  Function function;
  bool round_bf16;
  const float* x;  // [rows][k]
  int64_t x_stride;
  float* out;  // [rows][n], or [rows][top_k * n]
  int64_t out_stride;
};

// The sum that a Mixture makes, of what cores have made of their own experts each, with the same bits.
struct Gathering : Choice {
  const std::vector<int>* bounds;  // [parts + 1]: where each core's experts begin, and where the last one's end
  std::vector<const float*> parts;  // [rows][top_k * width] each
  int64_t stride;
  std::vector<float*> outs;  // [rows][width] each, all the same
  int64_t out_stride;
  int width;
  bool round_bf16;
};

// The mixtures of one pool, with their working memory.  It grows outside of regions alone.
class Experts {
 public:
  // However many rows go to one expert, none is dropped; what a row becomes depends on that row alone, bit for bit.
  // Of experts that no row takes nothing is read.  Throws as `linear` does.
  void run(const Run& run, const Mixture& op);

  void gather(const Run& run, const Gathering& op);

  // Of what rows are while experts multiply them: as much as rows take experts, whichever these are.
  size_t bytes() const { return inputs_.size() + middle_.size() + results_.size(); }

 private:
  void choose_all(const Run& run, const Choice& op);
  void choose(const RowTable& rows, const Choice& op, int row) noexcept;
  const float* judge(const RowTable& rows, const Choice& op, int row) noexcept;
  void weigh(const RowTable& rows, const Choice& op, int row) noexcept;
  void group(const Mixture& op);
  void scale_inputs(const Run& run, const Mixture& op);
  void multiply(const Run& run, const Mixture& op);

  // By row and by place among the experts that it takes.
  std::vector<int32_t> chosen_, place_;  // which expert, and where its result is (-1: on another core)
  std::vector<float> weights_;
  std::vector<float> factors_;  // of what experts take, where that is weighed
  std::vector<float> shares_, judged_;  // [rows][experts]
  std::vector<int32_t> groups_;  // [rows][taken groups]
  // By expert and, of each, by row.
  std::vector<int32_t> starts_;  // [own experts + 1]
  std::vector<int32_t> row_of_;  // of x
  Buffer inputs_;  // rows times their factors, where there are any
  Buffer middle_, results_;
  std::vector<Segment> segments_;
  std::vector<Linear> into_, back_;
};

}  // namespace corepipe
