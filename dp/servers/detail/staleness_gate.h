#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace dp::detail {

/// Who may take parameters and whose gradients may be applied, so that no
/// update is ever staler than a bound. Pure bookkeeping, no waiting.
///
/// The version counts the updates applied. A worker that took version p holds
/// the deadline p + bound: its update must come before the version passes it.
/// The holders are feasible when, sorted by deadline, the i-th can still come
/// as the i-th update from now. A worker may take when it would leave the
/// holders feasible, and an update is applied when it leaves the others so.
/// The earliest deadline is therefore never refused, so a server always goes
/// on once its earliest holder pushes.
///
/// Several servers: a worker asks them one after another, in one order for all,
/// and pushes to all of them without waiting for any. Then they cannot wait for
/// each other in a circle: who is refused waits for the earliest holder at that
/// server, which computes, or waits at a later server; the last server has no
/// later one.
///
/// Source: the deadlines are Liu and Layland's earliest-deadline-first rule,
/// 1973; the bound on the delay of an update is that of Agarwal and Duchi,
/// "Distributed Delayed Stochastic Optimization", NeurIPS 2011.
class StalenessGate {
 public:
  /// @param bound  the largest staleness, from 0 on; 0 serialises the workers.
  explicit StalenessGate(int64_t bound) : bound_(bound) {}

  /// Queues a worker that wants parameters. It holds nothing any more, unless
  /// its gradients are waiting.
  void ask(int worker);
  /// True when the worker is next and may take the parameters.
  bool may_take(int worker) const;
  /// The worker takes the parameters of this version. Only when it may.
  void take(int worker);

  /// True when no holder has an earlier deadline: its gradients are applied as
  /// soon as they come.
  bool is_first(int worker) const;
  /// The gradients of a holder have come.
  void push(int worker);
  /// The next update: whose gradients, and how stale they are; the stalest come
  /// first. None when none is waiting or may be applied.
  struct Update {
    int worker;
    int64_t staleness;
  };
  std::optional<Update> next_update();

  /// The worker is gone. Gradients that have come are still applied.
  void drop(int worker);

  int64_t version() const { return version_; }

 private:
  bool is_feasible_without(int worker, int64_t version) const;

  int64_t bound_;
  int64_t version_ = 0;
  std::map<int, int64_t> held_;  // worker -> version that it took
  std::set<int> pushed_;         // holders whose gradients are waiting
  std::deque<int> queue_;
};

}  // namespace dp::detail
