#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/health/command.h"
#include "launcher/loop/event_loop.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

/// --health-check: a command that says whether a host may take part.
struct HealthCheck {
  std::string command;
  std::chrono::milliseconds limit{60'000};  ///< of its time
};

/// What to tell of a check.
struct HealthVerdict {
  std::vector<std::string> notes;      ///< the last lines that it wrote
  std::optional<std::string> failure;  ///< nothing: the host is fit
};

/// Pure.
///
/// @param end nothing: the command could not be run
HealthVerdict judge_health(const HealthCheck& check,
                           const std::optional<CommandEnd>& end,
                           const std::string& host);

/// Runs the check before every world, in a process of its own, and asks `next`
/// only when it has succeeded. Else this host leaves: RendezvousNote for what
/// the check has written, RendezvousLost.
///
/// @param settings that the check does not inherit
/// @param host this one's name, for people
std::unique_ptr<Rendezvous> make_checked_rendezvous(
    EventLoop& loop,
    const HealthCheck& check,
    const Environment& environment,
    const OwnSettings& settings,
    const std::string& host,
    std::unique_ptr<Rendezvous> next,
    Rendezvous::Handler handler);

}  // namespace launcher
