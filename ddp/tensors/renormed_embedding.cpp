#include "ddp/tensors/renormed_embedding.h"

#include <torch/nn/modules/embedding.h>

namespace ddp::detail {

std::string renormed_embedding(const torch::nn::Module& module,
                               const std::set<std::string>& ignored) {
  for (const auto& item : module.named_modules()) {
    const auto* rows = item.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bags = item.value()->as<torch::nn::EmbeddingBagImpl>();
    const auto name = item.key().empty() ? "weight" : item.key() + ".weight";
    if (((rows && rows->options.max_norm()) ||
         (bags && bags->options.max_norm())) &&
        ignored.count(name) == 0) {
      return name;
    }
  }
  return "";
}

}  // namespace ddp::detail
