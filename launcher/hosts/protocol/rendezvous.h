#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "launcher/base/exit_status.h"
#include "launcher/plan/world.h"

namespace launcher {

/// Contribution of this host to the job.
struct HostOffer {
  int worker_count = 1;
};

/// Result of this host's workers in the present world.
struct HostSucceeded {};
struct HostFailed {
  int rank;  ///< of the worker that failed first
  ExitStatus status;
  bool is_final = false;  ///< this host starts no other attempt
  std::string reason{};   ///< why it could not start; empty: see status
};
using HostOutcome = std::variant<HostSucceeded, HostFailed>;

/// Failure that reached the coordinator first.
struct FirstFailure {
  int rank = 0;
  std::string host;
};

// Answers of a rendezvous.

/// Answer to join(): start the workers.
struct WorldFormed {
  World world;
};
/// Stop the workers, then join() again for the next world.
struct WorldBroken {
  enum class Change { joined, left, vanished, failed };
  Change change;
  std::string host;   ///< name of the host that changed
  std::string how{};  ///< "silent for 15 s"; empty: not known
};
/// The rendezvous has failed. No other answer follows.
struct RendezvousLost {
  std::string text;  ///< the reason, and how to fix it
};
/// All hosts are done.
struct JobClosed {
  int exit_code;
  std::string text{};  ///< reason of an exit code other than 0; empty: unknown
  std::optional<FirstFailure> first{};  ///< set if a worker's failure closed it
};
/// A message for the user, without any effect.
struct RendezvousNote {
  std::string text;
};
using RendezvousAnswer = std::variant<WorldFormed,
                                      WorldBroken,
                                      RendezvousLost,
                                      JobClosed,
                                      RendezvousNote>;

/// How the hosts of a job come together before every start of the workers, and
/// learn of each other's end. Every kind in RendezvousConfig has an
/// implementation; see make_rendezvous().
///
/// No call blocks. The rendezvous passes its answers to the handler that it was
/// made with, on the thread of the event loop. Answers that are known at once
/// come before the call returns.
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

  /// Joins the next world. The answer is WorldFormed, or RendezvousLost when
  /// there can be no world. Releases the port that the last world reserved.
  virtual void join(const HostOffer& offer) = 0;

  /// Reports the outcome of this host to the others. After a success, and after
  /// the last failure in a world of several hosts, the answer is JobClosed, or
  /// WorldBroken when the others need another attempt.
  virtual void report(const HostOutcome& outcome) = 0;

  /// Takes no further part in the job; this host's workers may still run. There
  /// is no answer.
  virtual void leave() = 0;

  /// Whether the event loop has no work left for the rendezvous, once the job
  /// is closed, the rendezvous is lost, or this host has left.
  /// True within a few seconds.
  virtual bool is_over() const = 0;
};

}  // namespace launcher
