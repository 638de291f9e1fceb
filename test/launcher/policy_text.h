#pragma once

#include <csignal>
#include <string>

#include "launcher/base/exit_status.h"
#include "launcher/base/overloaded.h"
#include "launcher/job/policy/policy.h"

// The actions of a Policy, as text that tests compare.
namespace launcher::test {

inline constexpr ExitStatus kSuccess{};
inline constexpr ExitStatus kFailure{.code = 3};
inline constexpr ExitStatus kCrash{.signal = SIGSEGV};

inline std::string text_of(const Cause& cause) {
  constexpr const char* kNames[] = {"success",
                                    "failure",
                                    "start",
                                    "signal",
                                    "broken",
                                    "lost",
                                    "closed",
                                    "hang"};
  return kNames[cause.index()];
}

inline std::string text_of(const Action& action) {
  return std::visit(
      Overloaded{
          [](const Warn& warn) { return "Warn " + warn.text; },
          [](const Join&) -> std::string { return "Join"; },
          [](const Leave&) -> std::string { return "Leave"; },
          [](const SendOutcome& send) {
            const auto* failed = std::get_if<HostFailed>(&send.outcome);
            return failed == nullptr
                       ? "Send success"
                       : "Send rank " + std::to_string(failed->rank);
          },
          [](const StartWorkers& start) {
            return "Start " + std::to_string(start.world.generation);
          },
          [](const PassOn& pass) { return "Pass " + signal_name(pass.number); },
          [](const RequestStop& request) {
            return "Request " + signal_name(request.number);
          },
          [](const StopWorkers& stop) {
            return "Stop " + signal_name(stop.number);
          },
          [](const KillWorkers& kill) {
            std::string text = "Kill";
            for (const int local_rank : kill.local_ranks) {
              text += " " + std::to_string(local_rank);
            }
            return text + " " + signal_name(kill.number);
          },
          [](const NameLeft&) -> std::string { return "NameLeft"; },
          [](const KillAll&) -> std::string { return "Kill"; },
          [](const TerminateStrays&) -> std::string {
            return "TerminateStrays";
          },
          [](const KillStrays&) -> std::string { return "KillStrays"; },
          [](const ArmTimer& arm) {
            return "Arm " + text_of(arm.timer) + " " +
                   std::to_string(arm.delay.count());
          },
          [](const DisarmTimer& disarm) {
            return "Disarm " + text_of(disarm.timer);
          },
          [](const WriteReport& write) {
            return "Report " + text_of(write.cause);
          },
          [](const DrainOutput&) -> std::string { return "Drain"; },
      },
      action);
}

/// Returns "action, action -> phase" without messages, or "-" if the event
/// changes nothing.
inline std::string step(Policy& policy, const Event& event) {
  const Policy::Phase before = policy.phase();
  std::string text;
  for (const Action& action : policy.on(event)) {
    if (std::holds_alternative<Warn>(action)) {
      continue;
    }
    text += (text.empty() ? "" : ", ") + text_of(action);
  }
  if (policy.phase() != before) {
    text += (text.empty() ? "-> " : " -> ") + text_of(policy.phase());
  }
  return text.empty() ? "-" : text;
}

/// This host's ranks are 10, 11 and 12.
inline WorldFormed world_of(int generation, int restarts) {
  return {{.generation = generation,
           .restarts = restarts,
           .host_rank = 1,
           .host_count = 2,
           .first_rank = 10,
           .world_size = 13}};
}

inline const WorldBroken kBroken{WorldBroken::Change::vanished, "node3"};
inline const RendezvousLost kLost{"gone"};

}  // namespace launcher::test
