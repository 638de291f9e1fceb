#pragma once

#include <array>
#include <functional>
#include <string>

#include "launcher/base/fd.h"

namespace launcher::test {

/// Two hosts with a cable between them: network namespaces of this machine,
/// which the kernel removes with the last process in them. Nothing reaches
/// them from outside.
class Networks {
 public:
  Networks();

  /// Why they could not be made: rights or the program `ip` are missing.
  const std::string& error() const { return error_; }

  /// 10.77.0.1 and 10.77.0.2.
  static std::string address(int host) {
    return "10.77.0." + std::to_string(host + 1);
  }
  /// What a child does to be on that host, named "host0" or "host1".
  std::function<void()> enter(int host) const;

  /// From now on all that one sends the other is lost in silence.
  void cut() const;

 private:
  void run(int host, const std::string& command);

  std::array<Fd, 2> hosts_;
  std::string error_;
};

/// What a child does to have a name server that never answers, whatever it
/// asks; in a network of its own, with the loopback alone.
///
/// @param folder for a file, which must last as long as the child
/// @returns nothing where that cannot be made: only root may
std::function<void()> enter_silence(const std::string& folder);

}  // namespace launcher::test
