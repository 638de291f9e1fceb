#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/health_verdict.h"
#include "launcher/hosts/member/name_lookup.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/machine/background_call.h"

namespace launcher {

/// Steps of a host before every Rendezvous::join(): runs --health-check, and
/// looks up the host of --master-addr until a lookup has found an address. Both
/// run in processes of their own, so the event loop goes on.
class JoinSteps {
 public:
  struct Options {
    HealthCheck health_check{};            ///< empty command: no check
    std::optional<NameQuestion> lookup{};  ///< nothing: no lookup
    std::string host;                      ///< name of this host for messages
  };

  /// @param environment,settings  of the caller, for the check's command
  /// @param handler  gets RendezvousNote for the check's output and for a wait
  ///   for an address, and RendezvousLost when a step fails: the host cannot
  ///   join
  JoinSteps(EventLoop& loop,
            Options options,
            const Environment& environment,
            const CallerSettings& settings,
            Rendezvous::Handler handler);
  JoinSteps(const JoinSteps&) = delete;
  JoinSteps& operator=(const JoinSteps&) = delete;

  /// @param join  is called when all steps have succeeded; without any steps,
  ///   before run() returns
  void run(std::function<void()> join);

  /// Ends the present step. Neither `join` nor the handler is called any more.
  void cancel();

 private:
  void check_health();
  void finish_check(const std::optional<CommandEnd>& end);
  void look_up();

  EventLoop& loop_;
  Options options_;
  const Environment& environment_;
  const CallerSettings& settings_;
  Rendezvous::Handler handler_;
  std::function<void()> join_;
  std::optional<BackgroundCall> check_;
  std::optional<NameLookup> lookup_;
  bool is_resolved_ = false;
};

}  // namespace launcher
