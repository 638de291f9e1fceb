#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/loop/event_loop.h"
#include "launcher/process/background_call.h"
#include "launcher/rendezvous/meeting.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

/// Asks the name service for a host, in a process of its own: one that does not
/// answer holds up no signal. While it lasts a note says so; after join_timeout
/// it is given up.
class NameLookup {
 public:
  struct Question {
    std::string host;
    std::string option;                ///< that names it
    std::function<std::string()> ask;  ///< runs in that process
    Patience patience{};
  };

  /// @param handler hears RendezvousNote, and RendezvousLost when it is given
  /// up
  /// @param on_answer what `ask` returned, empty when it threw. Called by the
  ///   loop, once at most; may destroy the lookup.
  /// @throws LaunchError when no process can be made
  NameLookup(EventLoop& loop,
             const Question& question,
             const Rendezvous::Handler& handler,
             const std::function<void(const std::string&)>& on_answer);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

 private:
  EventLoop& loop_;
  std::optional<BackgroundCall> call_;
};

}  // namespace launcher
