#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/base/backoff.h"
#include "launcher/hosts/protocol/message.h"
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
/// A connection that ends, or that brings no answer for a keep-alive interval,
/// is made again. Meanwhile the world continues, and the host keeps its place.
/// The rendezvous is lost when the coordinator has sent nothing for
/// RendezvousTimeouts::silence(), and at once if no coordinator listens at the
/// endpoint any more: the job has ended with it. A process that listens there
/// without sending a message of a coordinator does not count.
///
/// A host that waits for the coordinator, for other hosts or for their end
/// prints this once, as a note.
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

  /// Close the present connection, if any, and begin to make another one;
  /// on_connected() or on_closed() follows.
  struct Connect {};
  /// Close after sending the messages before this; on_closed() is optional.
  struct Disconnect {};
  using Action = std::variant<Connect, Disconnect, Message, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit RendezvousClient(Options options);

  /// @param store_port  port for rank 0's store, if this host has rank 0
  Actions join(int store_port, Time now);
  Actions report(const HostOutcome& outcome, Time now);
  Actions leave();

  /// @param address of this host in the connection
  Actions on_connected(const std::string& address, Time now);
  /// @param how  reason for messages; empty: not known
  /// @param is_gone  whether no coordinator listens at the endpoint
  Actions on_closed(Time now,
                    const std::string& how = "",
                    bool is_gone = false);
  Actions on_message(const Message& message, Time now);
  Actions on_time(Time now);

  /// Time of the next on_time(); nothing: no call is needed.
  std::optional<Time> next_deadline() const;

 private:
  enum class Phase { none, connecting, connected, over };

  void advance(Time now);
  void begin_to_wait();
  Actions connect();
  Actions send_state();
  Actions finish(const RendezvousAnswer& answer);
  Actions enter_world(const WorldFormed& formed);
  Actions break_world(const Broken& broken);
  Actions print_news(const std::string& text);
  std::string lost_text() const;
  std::string endpoint_text() const;

  Options options_;
  HostState state_;
  Phase phase_ = Phase::none;
  bool has_answered_ = false;  // the coordinator, in any connection
  bool is_answered_ = false;   // it has, after the last message to it
  std::string how_lost_;       // reason for the end of the last connection
  bool is_broken_ = false;     // the coordinator has broken the present world
  Time now_{};
  Time next_step_{};  // time of the next state to send, or the next attempt
  Time give_up_{};    // without a message of the coordinator
  ddp::detail::Backoff backoff_{std::chrono::milliseconds(5),
                                std::chrono::milliseconds(250)};
  std::optional<Time> next_news_;  // nothing: no wait, or it has said so
};

}  // namespace launcher
