// A mixture of experts: the routing of rows to experts, and the experts' results.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/linear.h"
#include "linear/matrix.h"
#include "rows/row_table.h"

namespace corepipe {

struct Run;

// The weights of the experts that a row is routed to: the softmax over all scores; over those of the chosen experts;
// for each expert over the scores near its own, without those of the experts chosen before it; or each score's sigmoid,
// as it is or divided by the sum of those of the chosen experts.  input_sigmoid: each score's sigmoid, which multiplies
// the expert's input, not its result.
enum class Scoring { of_all, of_chosen, of_near, sigmoid, sigmoid_shares, input_sigmoid };

// nearness: for of_near, by which part of the larger of the two sizes a score may be less than the expert's.
// correction: for sigmoids, added for the choice alone.  groups: number of equal groups of experts; a row chooses from
// the `taken_groups` groups with the largest score or, for sigmoids, with the largest sum of their two largest.
// factor: multiplies all weights.
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

// Rows, and the scores by which each is routed to some of so many experts.  Strides are in elements.
struct Choice {
  Routing routing;
  int experts;
  int rows;
  const float* scores;  // [rows][experts]
  int64_t scores_stride;
};

// out = round(the sum over the `top_k` experts of the taken groups whose scores are highest of weight *
// round(down(...))), added in that order; of equal scores the first comes first.  Where inputs are weighted, experts
// take round(weight * x), and their results are added unweighted.  A row whose scores are not all finite becomes NaN.
// All experts have the same shapes.  out is not x.  For a core that has some of the experts, from `first` on, out has
// their results, neither weighted nor added: a row's result of its i-th expert at i * n; the places of other cores'
// experts are left as they were.
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

// The sum of a Mixture, from the results of each core's own experts, with the same bits.
struct Gathering : Choice {
  const std::vector<int>* bounds;  // [parts + 1]: the first expert of each core, and the end of the last core's
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
  // An expert accepts any number of rows; a row's result depends on that row alone, bit for bit.
  // Weights of experts without rows are not read.  Throws as `linear` does.
  void run(const Run& run, const Mixture& op);

  void gather(const Run& run, const Gathering& op);

  // Bytes of the intermediate rows: they depend on rows times experts per row, not on which experts these are.
  size_t bytes() const { return inputs_.size() + middle_.size() + results_.size(); }

 private:
  void choose_all(const Run& run, const Choice& op);
  void choose(const RowTable& rows, const Choice& op, int row) noexcept;
  const float* judge(const RowTable& rows, const Choice& op, int row) noexcept;
  void weigh(const RowTable& rows, const Choice& op, int row) noexcept;
  void group(const Mixture& op);
  void scale_inputs(const Run& run, const Mixture& op);
  void multiply(const Run& run, const Mixture& op);

  // By row and by place among the row's experts.
  std::vector<int32_t> chosen_, place_;  // the expert, and the row of its result (-1: on another core)
  std::vector<float> weights_;
  std::vector<float> factors_;  // of the experts' inputs, where those are weighted
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
