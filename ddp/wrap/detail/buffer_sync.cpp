#include "ddp/wrap/detail/buffer_sync.h"

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddp/job/state_sync.h"

namespace ddp::detail {
namespace {

/// A module that has buffers.
struct Owner {
  std::shared_ptr<torch::nn::Module> module;
  std::string prefix;             ///< of its buffers' names
  std::set<std::string> ignored;  ///< names of buffers, without the prefix
};

std::vector<Owner> owners_of_buffers(torch::nn::Module& module,
                                     const std::set<std::string>& ignored) {
  std::vector<Owner> owners;
  for (const auto& item : module.named_modules()) {
    const auto buffers = item.value()->named_buffers(/*recurse=*/false);
    if (buffers.is_empty()) {
      continue;
    }
    Owner owner{item.value(), item.key().empty() ? "" : item.key() + ".", {}};
    for (const auto& key : buffers.keys()) {
      if (ignored.count(owner.prefix + key) > 0) {
        owner.ignored.insert(key);
      }
    }
    owners.push_back(std::move(owner));
  }
  return owners;
}

/// Calls `take(owner, key, buffer)` for each buffer that is not ignored. A
/// buffer with several names is taken once.
template <typename Take>
void for_each_buffer(const std::vector<Owner>& owners, const Take& take) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& owner : owners) {
    for (const auto& item : owner.module->named_buffers(/*recurse=*/false)) {
      if (owner.ignored.count(item.key()) == 0 &&
          seen.insert(item.value().unsafeGetTensorImpl()).second) {
        take(owner, item.key(), item.value());
      }
    }
  }
}

/// Detached aliases with their own version counters, so that a hook's in-place
/// changes do not invalidate autograd graphs.
NamedBuffers data_of_buffers(const std::vector<Owner>& owners) {
  NamedBuffers data;
  for_each_buffer(owners, [&](const Owner& owner, const auto& key, auto& each) {
    data.insert(owner.prefix + key, each.variable_data());
  });
  return data;
}

/// Without the names, which take as long to make as the rest.
std::vector<at::Tensor> buffers_of(const std::vector<Owner>& owners) {
  std::vector<at::Tensor> buffers;
  for_each_buffer(owners, [&](const Owner&, const auto&, auto& each) {
    buffers.push_back(each);
  });
  return buffers;
}

}  // namespace

std::function<void(int, c10d::Backend&)> buffer_sync(
    torch::nn::Module& module,
    const std::set<std::string>& ignored,
    BufferHook hook) {
  auto owners = owners_of_buffers(module, ignored);
  if (owners.empty()) {
    return {};
  }
  return [owners = std::move(owners), hook = std::move(hook)](
             int source, c10d::Backend& group) {
    if (hook) {
      hook(group, data_of_buffers(owners));
    } else {
      broadcast_from(source, group, buffers_of(owners));
    }
  };
}

}  // namespace ddp::detail
