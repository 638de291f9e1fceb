#include "ddp/wrap/detail/buffer_sync.h"

#include <memory>
#include <utility>
#include <vector>

#include "ddp/job/named_tensors.h"
#include "ddp/job/state_sync.h"

namespace ddp::detail {
namespace {

/// The modules that have buffers, each with the prefix of its buffers' names.
using Owners =
    std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

Owners owners_of_buffers(torch::nn::Module& module) {
  Owners owners;
  for (const auto& item : module.named_modules()) {
    if (!item.value()->buffers(/*recurse=*/false).empty()) {
      owners.emplace_back(item.key().empty() ? "" : item.key() + ".",
                          item.value());
    }
  }
  return owners;
}

std::vector<NamedParameter> buffers_of(const Owners& owners,
                                       const std::set<std::string>& ignored) {
  NamedTensors all;
  for (const auto& [prefix, owner] : owners) {
    for (const auto& item : owner->named_buffers(/*recurse=*/false)) {
      all.insert(prefix + item.key(), item.value());
    }
  }
  return unique(all, ignored);
}

/// Detached aliases with their own version counters, so that a hook's in-place
/// changes do not invalidate autograd graphs.
NamedBuffers data_of(const std::vector<NamedParameter>& buffers) {
  NamedBuffers data;
  for (const auto& buffer : buffers) {
    data.insert(buffer.name, buffer.tensor.variable_data());
  }
  return data;
}

}  // namespace

std::function<void(int, c10d::Backend&)> buffer_sync(
    torch::nn::Module& module,
    const std::set<std::string>& ignored,
    BufferHook hook) {
  auto owners = owners_of_buffers(module);
  if (owners.empty()) {
    return {};
  }
  return [owners = std::move(owners), ignored, hook = std::move(hook)](
             int source, c10d::Backend& group) {
    const auto buffers = buffers_of(owners, ignored);
    if (hook) {
      hook(group, data_of(buffers));
    } else {
      broadcast_from(source, group, tensors_of(buffers));
    }
  };
}

}  // namespace ddp::detail
