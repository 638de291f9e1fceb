#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/member/name_question.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/hosts/protocol/waiting_text.h"
#include "launcher/machine/background_call.h"

namespace launcher {

/// Asks the name service for a host, in a process of its own: one that does not
/// answer holds up no signal. A name that has no address yet is asked for again
/// until join_timeout, as that of a pod which is yet to start; see judge().
/// Notes say what it waits for.
class NameLookup {
 public:
  using Found = std::function<void(const std::vector<std::string>& addresses)>;

  /// @param handler hears RendezvousNote, and RendezvousLost at the end
  /// @param on_found gets one address at least. Called by the loop, once at
  ///   most; may destroy the lookup.
  /// @throws LaunchError when no process can be made
  NameLookup(EventLoop& loop,
             NameQuestion question,
             Rendezvous::Handler handler,
             Found on_found);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

 private:
  void ask();
  void ask_again();
  void take(const NameAnswer& answer);
  void tell_news();
  void arm_news();
  void end(const std::string& text);

  EventLoop& loop_;
  NameQuestion question_;
  Rendezvous::Handler handler_;
  Found on_found_;
  WaitingNews::Time end_;
  WaitingNews news_;
  std::chrono::milliseconds delay_;  // before the next question
  std::optional<NameAnswer> last_;   // nothing: none has come
  std::optional<BackgroundCall> call_;
};

}  // namespace launcher
