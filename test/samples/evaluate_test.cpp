#include <torch/types.h>

#include <cmath>
#include <vector>

#include "samples/support/evaluate.h"
#include "test/support/catch.h"

using namespace samples;

namespace evaluate_test {

Images ten_images() {
  return {torch::zeros({10, 1, 2, 2}, torch::kUInt8),
          torch::arange(10) % 5,
          {{0.0}, {1.0}}};
}

TEST_CASE("a set is evaluated batch by batch, as it is loaded") {
  std::vector<int64_t> sizes;
  const Score score = evaluate_here(
      ten_images(), 4, torch::kCPU, [&](const torch::Tensor& batch) {
        CHECK(batch.device().is_cpu());
        CHECK_FALSE(torch::GradMode::is_enabled());
        sizes.push_back(batch.size(0));
        return torch::zeros({batch.size(0), 5});  // class 0, equal scores
      });
  CHECK(sizes == std::vector<int64_t>{4, 4, 2});
  CHECK(score.count == 10);
  CHECK(score.correct == 2);
  CHECK(score.percent() == Approx(20));
  CHECK(score.loss == Approx(std::log(5.0)));
}

}  // namespace evaluate_test
