#include "ddp/optim/detail/owned_parameters.h"

#include <algorithm>
#include <string>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "ddp/job/state_sync.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/alias_without_view.h"

namespace ddp::detail {
namespace {

// From this size on, copying into a shared message costs more than a message of
// its own.
constexpr size_t kLargeBytes = size_t{1} << 20;

bool is_large(const at::Tensor& param) {
  return param.nbytes() >= kLargeBytes && param.is_non_overlapping_and_dense();
}

/// Returns the tensor to broadcast: the memory of a large parameter, or a copy
/// of several small ones.
at::Tensor message_of(const OwnedParameters& message, bool is_owner) {
  const at::Tensor& first = message.params.front();
  if (is_large(first)) {
    return alias_without_view(
        first.variable_data(), first.storage_offset(), {first.numel()}, {1});
  }
  if (is_owner) {
    return torch::utils::flatten_dense_tensors(message.params);
  }
  int64_t numel = 0;
  for (const auto& param : message.params) {
    numel += param.numel();
  }
  return at::empty({numel}, first.options().requires_grad(false));
}

}  // namespace

void add_pieces(const std::vector<ParameterShard>& pieces,
                std::vector<OwnedParameters>& messages) {
  for (const auto& piece : pieces) {
    const auto takes = [&](const OwnedParameters& message) {
      const at::Tensor& first = message.params.front();
      return message.owner == piece.owner && !is_large(first) &&
             first.scalar_type() == piece.part.scalar_type();
    };
    const auto found = std::find_if(messages.begin(), messages.end(), takes);
    if (is_large(piece.part) || found == messages.end()) {
      messages.push_back({piece.owner, {piece.part}});
    } else {
      found->params.push_back(piece.part);
    }
  }
}

void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<OwnedParameters>& messages) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const auto& message : messages) {
    flat.push_back(message_of(message, message.owner == group.getRank()));
    c10d::BroadcastOptions options;
    options.rootRank = message.owner;
    std::vector<at::Tensor> sent{flat.back()};
    works.push_back(group.broadcast(sent, options));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    wait(works[i],
         group,
         "broadcast of what rank " + std::to_string(messages[i].owner) +
             " has stepped");
    const auto& params = messages[i].params;
    if (messages[i].owner != group.getRank() && !is_large(params.front())) {
      copy_pieces(flat[i], params);
    }
  }
}

}  // namespace ddp::detail
