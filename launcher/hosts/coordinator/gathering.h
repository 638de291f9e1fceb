#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "launcher/hosts/coordinator/host_table.h"

namespace launcher {

/// Time between two worlds of a job. Decides whether the joined hosts form the
/// next world, or whether there were too few of them for too long. Pure.
///
/// A world forms when all known hosts have joined and their number is at least
/// awaited_hosts. After last_call_timeout, least_hosts are enough. After
/// join_timeout, hosts that have not joined are left out.
class Gathering {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Wait {};
  struct Form {};
  struct GiveUp {
    std::string text;  ///< the reason, with advice
  };
  using Verdict = std::variant<Wait, Form, GiveUp>;

  /// @param awaited_hosts  number of hosts that form a world without a last
  /// call
  Gathering(const JobTerms& terms,
            const RendezvousTimeouts& timeouts,
            int awaited_hosts,
            Time begin);

  /// @param lost  change that ended the last world, or a later loss of a host;
  ///   nullptr: there was no world
  Verdict judge(const HostTable& hosts, const WorldBroken* lost, Time now);

  /// Text with the joined hosts, the missing ones and the end of the wait.
  std::string describe(const HostTable& hosts, Time now) const;

  /// Time at which the verdict can change without a message.
  Time next_deadline(Time now) const;

 private:
  bool is_hopeless(const HostTable& hosts, const WorldBroken* lost) const;

  JobTerms terms_;
  RendezvousTimeouts timeouts_;
  int awaited_hosts_;
  Time since_;
  std::optional<Time> enough_since_;
};

}  // namespace launcher
