#include "ddp/wrap/detail/wrapped_module.h"

#include <algorithm>

#include <torch/nn/modules/embedding.h>

#include "ddp/base/text/nearest.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

void check_ignored(const std::set<std::string>& names,
                   const NamedTensors& parameters,
                   const NamedTensors& buffers) {
  for (const auto& name : names) {
    if (parameters.contains(name) || buffers.contains(name)) {
      continue;
    }
    auto known = parameters.keys();
    const auto others = buffers.keys();
    known.insert(known.end(), others.begin(), others.end());
    TORCH_CHECK(false,
                "Expected params_and_buffers_to_ignore to name parameters and "
                "buffers of the module that is wrapped, but got \"",
                name,
                "\"",
                did_you_mean(name, known),
                "; take the names of its named_parameters() and "
                "named_buffers()");
  }
}

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

/// Returns an error message if NCCL cannot average a module with tensors on
/// these devices, else "".
std::string device_problem(const c10::Device& own,
                           const std::vector<NamedParameter>& parameters) {
  const auto is_own = [&](const auto& item) {
    return item.tensor.device() == own;
  };
  const auto is_on_gpu = [](const auto& item) { return item.tensor.is_cuda(); };
  const auto& items = parameters;
  auto odd = std::find_if_not(items.begin(), items.end(), is_on_gpu);
  if (odd == items.end()) {
    if (std::any_of(items.begin(), items.end(), is_own)) {
      return "";
    }
    odd = items.begin();
  }
  return "Expected the module on " + own.str() +
         ", the device of this rank, but parameter " + odd->name + " is on " +
         odd->tensor.device().str() +
         ". Call net->to(ddp::local_device()) before the module is wrapped" +
         (odd->tensor.is_cuda()
              ? ": each rank has a GPU of its own; "
                "ddp::ProcessGroupOptions::device chooses another"
              : "");
}

}  // namespace

WrappedModule list_tensors(torch::nn::Module& module,
                           const std::set<std::string>& ignored) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  check_ignored(ignored, parameters, buffers);
  WrappedModule found{distinct_tensors(parameters, ignored),
                      distinct_tensors(buffers, ignored),
                      {}};
  std::set<const c10::TensorImpl*> shared;
  for (const auto& item : found.parameters) {
    shared.insert(item.tensor.unsafeGetTensorImpl());
  }
  for (const auto& item : distinct_tensors(parameters)) {
    if (shared.count(item.tensor.unsafeGetTensorImpl()) == 0) {
      found.ignored.push_back(item.tensor);
    }
  }
  const auto sparse = sparse_weights(module);
  for (auto& item : found.parameters) {
    item.sparse = sparse.count(item.tensor.unsafeGetTensorImpl()) > 0;
  }
  return found;
}

bool is_gloo_group_of_job(const c10d::Backend& group) {
  return monitored_backend_of(group) != nullptr &&
         group.getBackendName() == "gloo";
}

void verify_and_broadcast(c10d::Backend& group,
                          c10::Device device,
                          const WrappedModule& mine,
                          const std::vector<std::string>& options,
                          bool copies,
                          const std::string& refusal,
                          bool moves) {
  auto lines = describe_all(mine.parameters, mine.buffers);
  const auto parameters = tensors_of(mine.parameters);
  const auto buffers = tensors_of(mine.buffers);
  auto tensors = parameters;
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  auto* job = monitored_backend_of(group);
  const auto own = job == nullptr ? std::nullopt : job->getBoundDeviceId();
  number_devices(lines, tensors, own);
  lines.insert(lines.begin(),
               is_gloo_group_of_job(group) ? "a group of the job over Gloo"
                                           : "another group");
  lines.insert(lines.begin(), options.begin(), options.end());
  const bool is_moved = moves && device.is_cpu();
  const auto problem = own && refusal.empty() && !is_moved
                           ? device_problem(*own, mine.parameters)
                           : refusal;
  verify_across_ranks(group,
                      own.value_or(device),
                      lines,
                      "module",
                      "build it in the same way on every rank",
                      problem);
  for (const auto& tensor : tensors) {
    if (job != nullptr && !is_moved) {
      job->connect(tensor.device());
    }
  }
  if (copies) {
    broadcast_from(0, group, parameters);
    broadcast_from(0, group, buffers);
  }
}

}  // namespace ddp::detail
