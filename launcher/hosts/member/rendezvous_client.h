#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/protocol/backoff.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/hosts/protocol/waiting_text.h"
#include "launcher/options/meeting.h"

namespace launcher {

/// What one ddprun says to the coordinator of its job, and what it makes of the
/// answers. Pure: it has no sockets and no clock.
///
/// A connection that ends is made anew, at once and for as long as a silent
/// host is waited for; meanwhile the world goes on. It is broken when the
/// coordinator has been silent for so long, since that has missed this host by
/// then. Where nobody listens any more, the coordinator is gone, and with it
/// the job. Whoever listens there without a word of the coordinator's counts
/// for nobody.
///
/// While this host waits, for others or for their end, a note says so now and
/// then.
class RendezvousClient {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    Hello hello;
    std::string endpoint;                    ///< "host:port", for people
    std::string option = "--rdzv-endpoint";  ///< that has named it
    std::string local_address{};  ///< of this host, if the user named one
    RendezvousTimeouts patience{};
  };

  struct Connect {};     ///< begin to; on_connected() or on_closed() follows
  struct Disconnect {};  ///< after what was sent; on_closed() need not follow
  using Action = std::variant<Connect, Disconnect, Message, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  /// How a connection was lost.
  enum class Loss {
    refused,   ///< the endpoint's host is there, but nobody listens
    stranger,  ///< what came is no message
    cut,       ///< it has ended; the coordinator may be there
    other      ///< it could not be made, or nobody coordinates there any more
  };

  explicit RendezvousClient(Options options);

  /// @param store_port for rank 0's store, if rank 0 is this host's
  Actions join(int store_port, Time now);
  Actions report(const HostOutcome& outcome, Time now);
  Actions leave();
  /// The coordinator is another one, elsewhere. This host tells it where it
  /// stands, also after RendezvousLost; the present world is broken.
  ///
  /// @param endpoint of the new one, for people
  Actions move_to(const std::string& endpoint, Time now);

  /// @param address of this host, as it appears in the connection
  Actions on_connected(const std::string& address, Time now);
  /// @param how for people; empty: not known
  Actions on_closed(Loss loss, Time now, const std::string& how = "");
  Actions on_message(const Message& message, Time now);
  Actions on_time(Time now);

  /// Of the last world; -1: none.
  int generation() const { return state_.generation; }

  /// When to call on_time() next; nothing when there is no need to.
  std::optional<Time> next_deadline() const;

 private:
  enum class Link {
    none,
    connecting,
    greeting,  // the coordinator has not answered yet
    connected,
    resting,
    over
  };

  void advance(Time now);
  Actions connect();
  Actions tell();
  Actions lose(const std::string& text);
  Actions take(const Noted& noted);
  Actions end(const RendezvousAnswer& answer);
  Actions enter(const WorldFormed& formed);
  Actions break_world(const WorldBroken& why);
  Actions act_on_time();
  Actions give_news();
  Actions warn_of_address(const std::string& seen);
  Actions note(const std::string& text);
  bool is_coordinator_silent() const;
  std::string lost_text() const;
  std::string give_up_text() const;
  std::string stranger_text() const;
  std::string place() const;
  bool is_linked() const;
  bool is_in_world() const;

  Options options_;
  HostState state_;
  Link link_ = Link::none;
  bool was_connected_ = false;
  bool was_heard_ = false;
  std::string how_lost_;    // the last connection to the coordinator
  bool is_broken_ = false;  // the present world, and we were told
  Time now_{};
  Time last_heard_{};
  Time next_step_{};  // of the link: a sign of life, another attempt
  Backoff backoff_{std::chrono::milliseconds(5),
                   std::chrono::milliseconds(250)};
  Time give_up_{};  // without a coordinator that answers
  WaitingNews news_;
  bool has_asked_ = false;   // the coordinator, for the next news
  bool was_warned_ = false;  // of the address
};

}  // namespace launcher
