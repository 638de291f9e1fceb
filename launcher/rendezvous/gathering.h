#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "launcher/rendezvous/roster.h"

namespace launcher {

/// The time between two worlds of a job: whether the hosts that have joined are
/// to form the next one, or are too few for too long. Pure.
///
/// A world forms when all hosts that are known have joined, and as many as are
/// awaited; with fewer, but at least least_hosts, after the last call. Those
/// who have not joined by join_timeout are not waited for any more.
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
            const Patience& patience,
            int awaited_hosts,
            Time now);

  /// @param lost by what the last world ended, or who left since; nullptr:
  ///   there was none
  Verdict judge(const Roster& hosts, const WorldBroken* lost, Time now);

  /// This process slept, so nobody could join.
  void delay(Time::duration time);

  /// When the verdict can change without a message.
  Time next_deadline(Time now) const;

 private:
  bool is_hopeless(const Roster& hosts, const WorldBroken* lost) const;

  JobTerms terms_;
  Patience patience_;
  int awaited_hosts_;
  Time since_;
  std::optional<Time> enough_since_;
};

}  // namespace launcher
