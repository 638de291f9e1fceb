#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "launcher/base/exit_status.h"
#include "launcher/net/name_answer.h"
#include "launcher/options/meeting.h"
#include "launcher/plan/world.h"

namespace launcher {

class EventLoop;

/// What this host brings to the job.
struct HostOffer {
  int worker_count = 1;
};

/// What this host's workers came to in the present world.
struct HostSucceeded {};
struct HostFailed {
  int rank;  ///< of the worker that failed first
  ExitStatus status;
  bool is_final = false;  ///< this host starts no other attempt
};
using HostOutcome = std::variant<HostSucceeded, HostFailed>;

/// The worker whose failure the coordinator was told of first.
struct FirstFailure {
  int rank = 0;
  std::string host;
};

/// What a rendezvous answers.
struct WorldFormed {  ///< to join(): start the workers
  World world;
};
struct WorldBroken {  ///< the workers must end; join() again for the next world
  enum class Change {
    joined,
    left,
    vanished,
    failed,
    unreachable  ///< the coordinator, for this host
  };
  Change change;
  std::string host;   ///< whose
  std::string how{};  ///< "silent for 15 s"; empty: not known
};
struct RendezvousLost {  ///< there will be no other answer
  std::string text;      ///< why, and what to do
};
struct JobClosed {  ///< all hosts are done
  int exit_code;
  std::string text{};  ///< why it is not 0, where that is known
  std::optional<FirstFailure> first{};  ///< of workers, where it is one's
};
struct RendezvousNote {  ///< for the user; nothing else follows from it
  std::string text;
};
using RendezvousAnswer = std::variant<WorldFormed,
                                      WorldBroken,
                                      RendezvousLost,
                                      JobClosed,
                                      RendezvousNote>;

/// How the hosts of a job come together before every start of the workers, and
/// learn of each other's end. One implementation a way.
///
/// No call waits. The answers go to the handler that the rendezvous was made
/// with, on the thread of the event loop; those that are known at once come
/// before the call returns.
///
/// Example: a job of two attempts on one host
/// @code
///   join(offer)           -> WorldFormed{generation 0}
///   report(HostFailed)    // and when its workers are gone:
///   join(offer)           -> WorldFormed{generation 1, restarts 1}
///   report(HostSucceeded) -> JobClosed{0}
/// @endcode
class Rendezvous {
 public:
  using Handler = std::function<void(const RendezvousAnswer&)>;

  virtual ~Rendezvous() = default;

  /// Takes part in the next world: WorldFormed, or RendezvousLost when there
  /// can be none. What the last world reserved is given back.
  virtual void join(const HostOffer& offer) = 0;

  /// Tells the others. After a success, and after the last failure in a world
  /// of several hosts, comes JobClosed, or WorldBroken when the others need
  /// another attempt.
  virtual void report(const HostOutcome& outcome) = 0;

  /// Takes no further part; this host's workers may still run. No answer.
  virtual void leave() = 0;

  /// This host's workers have ended, and it starts no others: after leave(), or
  /// where the job is closed or lost.
  virtual void end() = 0;

  /// Whether the loop has nothing left to do for it after end(). True within a
  /// few seconds.
  virtual bool is_over() const = 0;
};

/// The hosts and the endpoint that the user names, the same for every world,
/// without a word to the other hosts: all have as many workers as this one, and
/// with several the first failure closes the job. On the host with rank 0 the
/// port is checked and reserved; see PortReservation for how it stays ours.
///
/// @param master port 0, with one host: a free port for every world, so that
///   nothing of an earlier one can answer
std::unique_ptr<Rendezvous> make_uncoordinated_rendezvous(
    const Endpoint& master,
    int host_rank,
    int host_count,
    Rendezvous::Handler handler);

/// Hosts that agree on their ranks by messages, through a coordinator in the
/// ddprun of the endpoint's host: the first one there that finds the port free.
/// See Coordinator for what it does and RendezvousClient for what the others
/// say to it.
///
/// MASTER_ADDR is the address of rank 0's host in its connection to the
/// coordinator (on the endpoint's host, as the user has named it); MASTER_PORT
/// is a free port of that host, another one for each world. Static hosts have
/// their ranks and rank 0's store from the user (Meeting::store).
///
/// @param host this host's name, for people
/// @param ask the name service
std::unique_ptr<Rendezvous> make_c10d_rendezvous(
    EventLoop& loop,
    const Meeting& meeting,
    const std::string& host,
    Rendezvous::Handler handler,
    std::function<NameAnswer(const std::string& host)> ask = ask_name_service);

/// As over c10d, but the hosts find their coordinator by etcd
/// (Meeting::etcd), and another one when its host is lost: see EtcdAgent.
std::unique_ptr<Rendezvous> make_etcd_rendezvous(EventLoop& loop,
                                                 const Meeting& meeting,
                                                 const std::string& host,
                                                 Rendezvous::Handler handler);

}  // namespace launcher
