#include "ddp/optim/detail/broadcast_from_owners.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

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

/// One large parameter, or the small parameters of one owner and dtype.
struct Message {
  int owner;
  std::vector<at::Tensor> params;
};

bool is_large(const at::Tensor& param) {
  return param.nbytes() >= kLargeBytes && param.is_non_overlapping_and_dense();
}

/// Equal arguments give equal messages on all ranks.
std::vector<Message> group_into_messages(const std::vector<at::Tensor>& params,
                                         const std::vector<int>& owners) {
  std::vector<Message> messages;
  std::map<std::pair<int, c10::ScalarType>, size_t> index_of_small;
  for (size_t i = 0; i < params.size(); ++i) {
    if (is_large(params[i])) {
      messages.push_back({owners[i], {params[i]}});
      continue;
    }
    const auto [found, is_new] = index_of_small.try_emplace(
        {owners[i], params[i].scalar_type()}, messages.size());
    if (is_new) {
      messages.push_back({owners[i], {}});
    }
    messages[found->second].params.push_back(params[i]);
  }
  return messages;
}

/// Returns the tensor to broadcast: the memory of a large parameter, or a copy
/// of several small ones.
at::Tensor payload_of(const Message& message, bool is_owner) {
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

void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<at::Tensor>& params,
                           const std::vector<int>& owners) {
  const c10::NoGradGuard no_grad;
  const auto messages = group_into_messages(params, owners);
  std::vector<at::Tensor> payloads;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const auto& message : messages) {
    payloads.push_back(payload_of(message, message.owner == group.getRank()));
    c10d::BroadcastOptions options;
    options.rootRank = message.owner;
    std::vector<at::Tensor> sent{payloads.back()};
    works.push_back(group.broadcast(sent, options));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    wait(works[i],
         group,
         "broadcast of the parameters that rank " +
             std::to_string(message.owner) + " has stepped");
    if (message.owner != group.getRank() && !is_large(message.params.front())) {
      copy_pieces(payloads[i], message.params);
    }
  }
}

}  // namespace ddp::detail
