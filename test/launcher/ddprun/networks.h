#pragma once

#include <array>
#include <functional>
#include <string>

#include "launcher/base/fd.h"

namespace launcher::test {

/// Two hosts with a cable between them: network namespaces of this machine,
/// which the kernel removes with their last process. They are unreachable from
/// outside.
class Networks {
 public:
  Networks();

  /// Reason if the networks could not be created: missing rights, or no program
  /// `ip`.
  const std::string& error() const { return error_; }

  /// 10.77.0.1 and 10.77.0.2.
  static std::string address(int host) {
    return "10.77.0." + std::to_string(host + 1);
  }
  /// Another address of the host, on no cable: 192.168.50.1 and 192.168.50.2.
  static std::string unreachable_address(int host) {
    return "192.168.50." + std::to_string(host + 1);
  }
  /// Returns a function with which a child moves to the host named "host0" or
  /// "host1".
  std::function<void()> enter(int host) const;

  /// Silently drops all packets between the hosts from now on.
  void cut() const;

 private:
  void run(int host, const std::string& command);

  std::array<Fd, 2> hosts_;
  std::string error_;
};

/// Returns a function with which a child gets `file` as its /etc/hosts, and
/// then calls `enter`.
std::function<void()> with_hosts_file(const std::string& file,
                                      const std::function<void()>& enter);

/// Returns a function with which a child runs a command of the shell in a
/// network of its own, and then calls `then` there.
///
/// @returns an empty function if this is not possible: it needs root
std::function<void()> enter_network(
    const std::string& command, const std::function<void()>& then = [] {});

/// Returns a function with which a child gets a name server that never answers,
/// in a network of its own that has only the loopback.
///
/// @param folder for a file, which must exist as long as the child
/// @returns an empty function if this is not possible: it needs root
std::function<void()> enter_silence(const std::string& folder);

}  // namespace launcher::test
