#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace dp::detail {

/// Decides which worker may take parameters and which gradients may be applied,
/// so that no update is staler than a bound. Pure bookkeeping without waiting.
///
/// The version is the number of applied updates. A worker that took version p
/// is a holder with the deadline p + bound: its update must be applied before
/// the version exceeds the deadline. The holders are feasible if, sorted by
/// deadline, the i-th holder can still be the i-th update from now. A worker
/// may take parameters if the holders stay feasible with it. An update is
/// applied if the other holders stay feasible. The holder with the earliest
/// deadline is therefore never refused, and a server makes progress once that
/// holder pushes.
///
/// Several servers: each worker asks them one after another, in an order common
/// to all workers, and pushes to all of them without waiting for any. This
/// prevents a circular wait. A refused worker waits for the earliest holder at
/// that server. This holder either computes or waits at a later server, and the
/// last server has no later one.
///
/// Source: the deadlines are Liu and Layland's earliest-deadline-first rule,
/// 1973; the bound on the delay of an update is that of Agarwal and Duchi,
/// "Distributed Delayed Stochastic Optimization", NeurIPS 2011.
class StalenessGate {
 public:
  /// @param bound  largest staleness, 0 or more; 0 serialises the workers.
  explicit StalenessGate(int64_t bound) : bound_(bound) {}

  /// Queues a worker that requests parameters. The worker ceases to be a
  /// holder, unless its gradients are waiting.
  void ask(int worker);
  /// Returns true if the worker is next and may take the parameters.
  bool may_take(int worker) const;
  /// Makes the worker a holder of the current version. Requires `may_take`.
  void take(int worker);

  /// Records that the gradients of a holder have arrived.
  void push(int worker);
  /// Returns the next update (worker and staleness) and applies it to the
  /// version. The stalest gradients come first. Returns std::nullopt if no
  /// gradients are waiting or none may be applied.
  struct Update {
    int worker;
    int64_t staleness;
  };
  std::optional<Update> next_update();

  /// Removes the worker as a holder and from the queue. Gradients that have
  /// arrived are still applied.
  void drop(int worker);

 private:
  bool is_feasible_without(int worker, int64_t version) const;

  int64_t bound_;
  int64_t version_ = 0;
  std::map<int, int64_t> held_;  // worker -> version that it took
  std::set<int> pushed_;         // holders with gradients that wait
  std::deque<int> queue_;
};

}  // namespace dp::detail
