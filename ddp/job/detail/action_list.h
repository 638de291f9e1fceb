#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ddp::detail {

/// Functions to be called at an event. Thread-safe; `call` runs them under a
/// lock.
class ActionList {
 public:
  /// @param action  does not throw.
  /// @returns an object that prevents further calls when it is destroyed.
  ///   Unlike `remove` its destructor does not wait for a running call.
  std::shared_ptr<const void> add(std::function<void()> action) {
    auto held =
        std::make_shared<const std::function<void()>>(std::move(action));
    const std::lock_guard lock(mutex_);
    actions_.erase(
        std::remove_if(actions_.begin(),
                       actions_.end(),
                       [](const auto& one) { return one.expired(); }),
        actions_.end());
    actions_.push_back(held);
    return held;
  }

  void remove(std::shared_ptr<const void>& action) {
    const std::lock_guard lock(mutex_);
    action.reset();
  }

  void call() const {
    const std::lock_guard lock(mutex_);
    for (const auto& action : actions_) {
      if (const auto held = action.lock()) {
        (*held)();
      }
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<const std::function<void()>>> actions_;
};

}  // namespace ddp::detail
