#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/base/backoff.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/hosts/protocol/waiting_news.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Makes the first message of a host.
///
/// @param host  name of the host for messages
/// @throws LaunchError when a name is too long for a message
Hello hello_of(const CoordinatedConfig& config,
               const std::string& host,
               const HostOffer& offer);

/// Messages of one ddprun to the coordinator of its job, and its reactions to
/// the answers. Pure: it has no sockets and no clock.
///
/// A connection that ends is made again at once, and retried for the time after
/// which a silent host is lost. The world goes on meanwhile. The world is
/// broken when the coordinator has been silent for that time, because the
/// coordinator has then removed this host. If no process listens at the
/// endpoint any more, the coordinator has gone, and so has the job. A process
/// that listens there without sending a message of a coordinator does not
/// count.
///
/// While this host waits, for other hosts or for their end, a note says so now
/// and then.
class RendezvousClient {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    Hello hello;                             ///< see hello_of()
    std::string endpoint;                    ///< "host:port", for messages
    std::string option = "--rdzv-endpoint";  ///< option that names the endpoint
    std::string local_address{};  ///< of this host, if the user gives one
    RendezvousTimeouts timeouts{};
  };

  /// Begin to connect; on_connected() or on_closed() follows.
  struct Connect {};
  /// Close after sending the messages before this; on_closed() is optional.
  struct Disconnect {};
  using Action = std::variant<Connect, Disconnect, Message, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  /// Reason for the end of a connection.
  enum class Loss {
    refused,   ///< the endpoint's host answers, but no process listens
    stranger,  ///< the data was no message
    cut  ///< it has ended, was not made or is silent; the coordinator may live
  };

  explicit RendezvousClient(Options options);

  /// @param store_port  port for rank 0's store, if this host has rank 0
  Actions join(int store_port, Time now);
  Actions report(const HostOutcome& outcome, Time now);
  Actions leave();

  /// @param address of this host in the connection
  Actions on_connected(const std::string& address, Time now);
  /// @param how  reason for messages; empty: not known
  Actions on_closed(Loss loss, Time now, const std::string& how = "");
  Actions on_message(const Message& message, Time now);
  Actions on_time(Time now);

  /// Time of the next on_time(); nothing: no call is needed.
  std::optional<Time> next_deadline() const;

 private:
  /// Phase of the connection to the coordinator.
  enum class Phase {
    none,
    connecting,
    greeting,  // the coordinator has not answered yet
    connected,
    resting,  // until the next attempt to connect
    over
  };

  void advance(Time now);
  Actions connect();
  Actions send_state();
  Actions fail(const std::string& text);
  Actions finish(const RendezvousAnswer& answer);
  Actions enter_world(const WorldFormed& formed);
  Actions break_world(const WorldBroken& why);
  Actions perform_due();
  Actions request_news();
  Actions print_news(const std::string& text);
  bool has_connection() const;
  bool is_in_world() const;
  bool is_coordinator_silent() const;
  std::string lost_text() const;
  std::string timeout_text() const;
  std::string stranger_text() const;
  std::string endpoint_text() const;

  Options options_;
  HostState state_;
  Phase phase_ = Phase::none;
  bool was_connected_ = false;
  bool has_answered_ = false;  // the coordinator
  std::string how_lost_;       // reason for the end of the last connection
  bool is_broken_ = false;     // the coordinator has broken the present world
  Time now_{};
  Time last_heard_{};  // time of the coordinator's last message
  Time next_step_{};   // time of the next state to send, or the next attempt
  ddp::detail::Backoff backoff_{std::chrono::milliseconds(5),
                                std::chrono::milliseconds(250)};
  Time give_up_{};  // without a coordinator that answers
  WaitingNews news_;
  bool has_requested_news_ = false;
};

}  // namespace launcher
