#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/protocol/host_table.h"

namespace launcher {

/// The time between two worlds of a job: whether the hosts that have joined are
/// to form the next one, or are too few for too long. Pure.
///
/// A world forms when all hosts that are known have joined, and as many as are
/// awaited; with fewer, but at least least_hosts, after the last call. Those
/// who have not joined by join_timeout are not waited for any more. Before it
/// begins, which may be after a pause, none forms.
class Gathering {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Wait {};
  struct Form {};
  struct GiveUp {
    std::string text;  ///< why, and what to do
  };
  using Verdict = std::variant<Wait, Form, GiveUp>;

  /// @param awaited_hosts of so many a world forms without a last call
  Gathering(const JobTerms& terms,
            const RendezvousTimeouts& patience,
            int awaited_hosts,
            Time begin);

  /// @param joined how many of the hosts have
  /// @param lost by what the last world ended, or who left since; nullptr:
  ///   there was none
  Verdict judge(const HostTable& hosts,
                int joined,
                const WorldBroken* lost,
                Time now);

  /// Who is there, who is missing and until when they are waited for.
  ///
  /// @param joined how many of the hosts have
  /// @param lost hosts of the last world that have gone since
  std::string describe(const HostTable& hosts,
                       int joined,
                       const std::vector<WorldBroken>& lost,
                       Time now) const;

  /// This process slept for that time before `now`, so nobody could join.
  void delay(Time::duration time, Time now);

  /// When the verdict can change without a message.
  Time next_deadline(Time now) const;

 private:
  bool is_hopeless(const HostTable& hosts, const WorldBroken* lost) const;
  std::string end_text(int joined, int known, Time now) const;

  JobTerms terms_;
  RendezvousTimeouts patience_;
  int awaited_hosts_;
  Time since_;
  std::optional<Time> enough_since_;
};

}  // namespace launcher
