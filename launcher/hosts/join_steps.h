#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/health_verdict.h"
#include "launcher/hosts/member/name_lookup.h"
#include "launcher/hosts/member/name_question.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/machine/background_call.h"

namespace launcher {

/// What a host does before every Rendezvous::join(): it runs --health-check,
/// and looks up the host of --master-addr until that has once had an address.
/// Both run in processes of their own, so the event loop goes on.
class JoinSteps {
 public:
  struct Options {
    HealthCheck health_check{};            ///< an empty command: there is none
    std::optional<NameQuestion> lookup{};  ///< nothing: there is no lookup
    std::string host;                      ///< this host's name, for messages
  };

  /// @param environment,settings of the check, which has the caller's
  /// @param handler gets RendezvousNote for what the check has written and
  ///   while an address is awaited, and RendezvousLost when a step fails: the
  ///   host cannot join
  JoinSteps(EventLoop& loop,
            Options options,
            const Environment& environment,
            const CallerSettings& settings,
            Rendezvous::Handler handler);
  JoinSteps(const JoinSteps&) = delete;
  JoinSteps& operator=(const JoinSteps&) = delete;

  /// @param join is called when all steps have succeeded, before run() returns
  ///   where there are none
  void run(std::function<void()> join);

  /// Ends a step that is under way; nothing is called any more.
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
