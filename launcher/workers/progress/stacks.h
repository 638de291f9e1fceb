#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/machine/background_call.h"

namespace launcher {

/// Collects the stacks of several processes concurrently, each in a separate
/// process. Gives up after ten seconds.
class Stacks {
 public:
  /// Receives one text per process, in order; empty if there is no stack. May
  /// destroy this object.
  using Handler = std::function<void(const std::vector<std::string>&)>;

  Stacks(EventLoop& loop, const std::vector<pid_t>& processes, Handler handler);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

 private:
  void end();

  EventLoop& loop_;
  Handler handler_;
  std::vector<std::string> texts_;
  size_t missing_;
  std::list<BackgroundCall> calls_;
};

}  // namespace launcher
