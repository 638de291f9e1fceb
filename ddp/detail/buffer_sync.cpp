#include "ddp/detail/buffer_sync.h"

#include <memory>
#include <utility>
#include <vector>

#include "ddp/detail/named_tensors.h"
#include "ddp/detail/state_sync.h"

namespace ddp::detail {

std::function<void(int, c10d::Backend&)> buffer_broadcast(
    torch::nn::Module& module, const std::set<std::string>& ignored) {
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      owners;
  for (const auto& item : module.named_modules()) {
    if (!item.value()->buffers(/*recurse=*/false).empty()) {
      owners.emplace_back(item.key().empty() ? "" : item.key() + ".",
                          item.value());
    }
  }
  if (owners.empty()) {
    return {};
  }
  return [owners = std::move(owners), ignored](int source,
                                               c10d::Backend& group) {
    NamedTensors all;
    for (const auto& [prefix, owner] : owners) {
      for (const auto& item : owner->named_buffers(/*recurse=*/false)) {
        all.insert(prefix + item.key(), item.value());
      }
    }
    broadcast_from(
        source, group, tensors_of(unique(all, ignored)));
  };
}

}  // namespace ddp::detail
