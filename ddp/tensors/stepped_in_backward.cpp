#include "ddp/tensors/stepped_in_backward.h"

#include <mutex>
#include <unordered_set>

namespace ddp::detail {
namespace {

/// Guarded by a mutex, because ranks may be threads of one process.
struct SteppedOptimizers {
  std::mutex mutex;
  std::unordered_multiset<const torch::optim::Optimizer*> all;
};

SteppedOptimizers& stepped_optimizers() {
  static auto* optimizers = new SteppedOptimizers;  // used at exit, too
  return *optimizers;
}

}  // namespace

SteppedInBackward::SteppedInBackward(const torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer) {
  auto& stepped = stepped_optimizers();
  const std::lock_guard<std::mutex> lock(stepped.mutex);
  stepped.all.insert(optimizer_);
}

SteppedInBackward::~SteppedInBackward() {
  auto& stepped = stepped_optimizers();
  const std::lock_guard<std::mutex> lock(stepped.mutex);
  stepped.all.erase(stepped.all.find(optimizer_));
}

bool SteppedInBackward::contains(const torch::optim::Optimizer& optimizer) {
  auto& stepped = stepped_optimizers();
  const std::lock_guard<std::mutex> lock(stepped.mutex);
  return stepped.all.count(&optimizer) > 0;
}

}  // namespace ddp::detail
