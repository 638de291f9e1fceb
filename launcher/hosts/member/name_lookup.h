#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/base/backoff.h"
#include "launcher/base/event_loop.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/hosts/protocol/waiting_news.h"
#include "launcher/machine/background_call.h"
#include "launcher/net/name_answer.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Host that a NameLookup looks up.
struct NameQuestion {
  std::string host;
  std::string option;      ///< option that names the host
  bool is_awaited = true;  ///< see judge()
  RendezvousTimeouts timeouts{};
  NameService ask = ask_name_service;
};

/// Looks up a host name in a process of its own, so a name service that does
/// not answer delays no signal. A name without an address, such as that of a
/// pod that has not started, is looked up again until join_timeout; see
/// judge(). Notes tell the user about the wait.
class NameLookup {
 public:
  using Found = std::function<void(const std::vector<std::string>& addresses)>;

  /// @param handler  gets RendezvousNote, and RendezvousLost when the lookup
  ///   fails
  /// @param on_found  gets at least one address. The event loop calls it at
  ///   most once. It may destroy the lookup.
  /// @throws LaunchError when no process can be started
  NameLookup(EventLoop& loop,
             NameQuestion question,
             Rendezvous::Handler handler,
             Found on_found);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

 private:
  void start_query();
  void query_again();
  void on_answer(const NameAnswer& answer);
  void arm_news();
  void print_news();
  void fail(const std::string& text);

  EventLoop& loop_;
  NameQuestion question_;
  Rendezvous::Handler handler_;
  Found on_found_;
  WaitingNews::Time deadline_;
  WaitingNews news_;
  ddp::detail::Backoff backoff_;
  std::optional<NameAnswer> last_;  // nothing: there is no answer yet
  std::optional<BackgroundCall> call_;
};

}  // namespace launcher
