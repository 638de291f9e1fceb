#include "ddp/job/state_sync.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "ddp/job/wait.h"
#include "ddp/tensors/expanded.h"

namespace ddp::detail {
namespace {

std::string dtypes_of(const at::Tensor& tensor) {
  const auto dtype = c10::str(tensor.scalar_type());
  const auto gradients = tensor.requires_grad()
                             ? tensor.grad_dtype()
                             : std::optional(tensor.scalar_type());
  return gradients == tensor.scalar_type() ? dtype
         : gradients ? c10::str(dtype, " with gradients of ", *gradients)
                     : dtype + " with any gradients";
}

std::string describe(const std::string& kind,
                     const std::string& name,
                     const at::Tensor& tensor) {
  return c10::str(kind,
                  " ",
                  name,
                  " of ",
                  dtypes_of(tensor),
                  " ",
                  tensor.sizes(),
                  ", strides ",
                  tensor.strides(),
                  ", requires_grad ",
                  tensor.requires_grad() ? "true" : "false");
}

}  // namespace

std::vector<NamedParameter> distinct_tensors(
    const torch::OrderedDict<std::string, at::Tensor>& tensors,
    const std::set<std::string>& ignored) {
  std::set<const c10::TensorImpl*> seen;
  std::vector<NamedParameter> result;
  for (const auto& item : tensors) {
    if (item.value().defined() && ignored.count(item.key()) == 0 &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named) {
  std::vector<at::Tensor> result;
  result.reserve(named.size());
  for (const auto& item : named) {
    result.push_back(item.tensor);
  }
  return result;
}

std::vector<std::string> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor, sparse] : parameters) {
    const char* kind = sparse ? "sparse parameter" : "parameter";
    lines.push_back(describe(kind, name, tensor));
  }
  for (const auto& item : buffers) {
    lines.push_back(describe("buffer", item.name, item.tensor));
  }
  return lines;
}

void number_devices(std::vector<std::string>& lines,
                    const std::vector<at::Tensor>& tensors,
                    const std::optional<c10::Device>& own) {
  std::vector<c10::Device> seen;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto device = tensors[i].device();
    const auto found = std::find(seen.begin(), seen.end(), device);
    lines[i] += c10::str(", device number ",
                         found - seen.begin() + 1,
                         device == own ? ", the rank's own" : "");
    if (found == seen.end()) {
      seen.push_back(device);
    }
  }
}

std::vector<std::vector<at::Tensor>> by_dtype_and_device(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& tensor : tensors) {
    const auto fits = [&](const auto& group) {
      return group.front().scalar_type() == tensor.scalar_type() &&
             group.front().device() == tensor.device();
    };
    const auto group = std::find_if(groups.begin(), groups.end(), fits);
    (group == groups.end() ? groups.emplace_back() : *group).push_back(tensor);
  }
  return groups;
}

std::vector<std::vector<at::Tensor>> messages_of(
    const std::vector<at::Tensor>& tensors, int64_t message_bytes) {
  std::vector<std::vector<at::Tensor>> messages;
  for (const auto& group : by_dtype_and_device(tensors)) {
    for (auto& chunk :
         torch::utils::take_tensors(group, message_bytes, false)) {
      messages.push_back(std::move(chunk.tensors));
    }
  }
  return messages;
}

void copy_pieces(const at::Tensor& flat,
                 const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> targets;
  for (const auto& tensor : tensors) {
    sizes.push_back(tensor.numel());
    // An alias with its own version counter.
    targets.push_back(tensor.variable_data());
  }
  auto pieces = flat.split_with_sizes(sizes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (targets[i].dim() != 1) {
      pieces[i] = pieces[i].view(targets[i].sizes());
    }
    narrow_expanded(targets[i], pieces[i]);
  }
  at::_foreach_copy_(targets, pieces);
}

void broadcast_from(int source,
                    c10d::Backend& group,
                    const std::vector<at::Tensor>& tensors,
                    int64_t message_bytes) {
  c10::NoGradGuard no_grad;
  c10d::BroadcastOptions options;
  options.rootRank = source;
  for (const auto& message : messages_of(tensors, message_bytes)) {
    const auto flat = torch::utils::flatten_dense_tensors(message);
    // As bytes, because NCCL and Gloo do not know all dtypes (int16, float8).
    std::vector<at::Tensor> bytes{flat.view({-1}).view(at::kByte)};
    wait(group.broadcast(bytes, options),
         group,
         "broadcast of rank " + std::to_string(source) + "'s state");
    if (group.getRank() != source) {
      copy_pieces(flat, message);
    }
  }
}

std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> trained;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& operation,
                        int64_t message_bytes) {
  const c10::NoGradGuard no_grad;
  for (const auto& message : messages_of(tensors, message_bytes)) {
    // Divides first, because a sum of half-precision values may overflow. One
    // tensor alone is not copied by the flattening, and must not change if the
    // sum fails.
    auto all = torch::utils::flatten_dense_tensors(message);
    std::vector<at::Tensor> flat{message.size() == 1
                                     ? all.div(group.getSize())
                                     : all.div_(group.getSize())};
    wait(group.allreduce(flat), group, operation);
    const auto means = torch::utils::unflatten_dense_tensors(flat[0], message);
    for (size_t i = 0; i < message.size(); ++i) {
      message[i].copy_(means[i]);
    }
  }
}

}  // namespace ddp::detail
