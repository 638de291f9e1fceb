#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/machine/background_call.h"

namespace launcher {

/// Asks for the stacks of some processes, in processes of their own and all at
/// once; gives up after ten seconds.
class Stacks {
 public:
  /// Gets a text for each process, in their order; empty where there is none.
  /// May destroy this object.
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
