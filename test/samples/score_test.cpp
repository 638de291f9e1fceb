#include "samples/support/score.h"

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "samples/support/models.h"
#include "test/support/catch.h"

namespace samples {
namespace score_test {

/// Gives every class the same score, so that class 0 is taken.
struct Unsure : Classifier {
  Unsure() { register_parameter("unused", torch::zeros({1})); }
  torch::Tensor forward(const torch::Tensor& images) override {
    computes_gradients = torch::GradMode::is_enabled();
    sizes.push_back(images.size(0));
    return torch::zeros({images.size(0), 5});
  }
  std::vector<int64_t> sizes;
  bool computes_gradients = true;
};

TEST_CASE("images are classified batch by batch, without gradients") {
  Unsure classifier;
  const Score score = classify(classifier,
                               {torch::zeros({150, 1, 2, 2}, torch::kUInt8),
                                torch::arange(150) % 5,
                                {{0.0}, {1.0}}});
  CHECK(classifier.sizes == std::vector<int64_t>{64, 64, 22});
  CHECK_FALSE(classifier.computes_gradients);
  CHECK_FALSE(classifier.is_training());
  CHECK(score.count == 150);
  CHECK(score.correct == 30);
  CHECK(score.percent() == Approx(20));
  CHECK(score.loss == Approx(std::log(5.0)));
  CHECK(to_text(score) == "20.00 % (30 of 150)");
}

TEST_CASE("the rows of several ranks make one score") {
  const auto scores = torch::tensor({{2.0, 0.0}, {0.0, 2.0}});
  const auto first = judge(scores, torch::tensor({0, 0}));
  const auto second = judge(scores, torch::tensor({0, 1}));
  CHECK(first.dtype() == torch::kFloat64);
  const Score score = to_score(torch::cat({first, second}));
  CHECK(score.count == 4);
  CHECK(score.correct == 3);
  const double right = std::log(1 + std::exp(-2.0));
  CHECK(score.loss == Approx((3 * right + right + 2) / 4));
}

}  // namespace score_test
}  // namespace samples
