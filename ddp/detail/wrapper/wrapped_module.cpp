#include "ddp/detail/wrapper/wrapped_module.h"

#include <torch/nn/modules/embedding.h>

#include "ddp/detail/named_tensors.h"
#include "ddp/detail/state_sync.h"

namespace ddp::detail {
namespace {

std::set<const c10::TensorImpl*> sparse_weights(torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> weights;
  for (const auto& child : module.modules()) {
    if (const auto* layer = child->as<torch::nn::EmbeddingImpl>();
        layer && layer->options.sparse()) {
      weights.insert(layer->weight.unsafeGetTensorImpl());
    }
    if (const auto* layer = child->as<torch::nn::EmbeddingBagImpl>();
        layer && layer->options.sparse()) {
      weights.insert(layer->weight.unsafeGetTensorImpl());
    }
  }
  return weights;
}

}  // namespace

WrappedModule look_into(torch::nn::Module& module,
                        const std::set<std::string>& ignored) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  check_ignored(ignored, parameters, buffers);
  WrappedModule found{unique(parameters, ignored), unique(buffers, ignored)};
  const auto sparse = sparse_weights(module);
  for (auto& item : found.parameters) {
    item.sparse = sparse.count(item.tensor.unsafeGetTensorImpl()) > 0;
  }
  return found;
}

void bring_together(c10d::Backend& group,
                    c10::Device device,
                    const WrappedModule& mine,
                    bool copies,
                    const std::string& refusal) {
  auto specs = describe_all(mine.parameters, mine.buffers);
  const auto parameters = tensors_of(mine.parameters);
  const auto buffers = tensors_of(mine.buffers);
  auto tensors = parameters;
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  number_devices(specs, tensors);
  verify_across_ranks(group, device, specs, refusal);
  if (copies) {
    broadcast_from(0, group, parameters);
    broadcast_from(0, group, buffers);
  }
}

}  // namespace ddp::detail
