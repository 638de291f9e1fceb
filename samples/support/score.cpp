#include "samples/support/score.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "samples/support/text.h"

namespace samples {

torch::Tensor judge(const torch::Tensor& scores, const torch::Tensor& labels) {
  const auto losses =
      torch::cross_entropy_loss(scores, labels, {}, at::Reduction::None);
  const auto hits = scores.argmax(1) == labels;
  return torch::stack({losses.to(torch::kFloat64), hits.to(torch::kFloat64)},
                      1);
}

Score to_score(const torch::Tensor& rows) {
  const auto sums = rows.sum(0);
  return {sums[0].item<double>() / static_cast<double>(rows.size(0)),
          sums[1].item<int64_t>(),
          rows.size(0)};
}

Score classify(Classifier& classifier, const Images& images) {
  constexpr size_t kBatch = 64;
  const torch::NoGradGuard no_grad;
  const auto device = classifier.parameters().front().device();
  Images set = images;  // shares the pixels
  std::vector<torch::Tensor> rows;
  classifier.eval();
  for (size_t begin = 0; begin < *set.size(); begin += kBatch) {
    std::vector<size_t> indices(std::min(kBatch, *set.size() - begin));
    std::iota(indices.begin(), indices.end(), begin);
    const auto batch = set.get_batch(indices);
    rows.push_back(judge(classifier.forward(batch.data.to(device)),
                         batch.target.to(device)));
  }
  return to_score(torch::cat(rows));
}

std::string to_text(const Score& score) {
  return format(
      "%.2f %% (%ld of %ld)", score.percent(), score.correct, score.count);
}

}  // namespace samples
