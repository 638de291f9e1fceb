#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/job/monitored_backend.h"

namespace ddp::detail {

/// Keeps the groups of a job and aborts groups that wait in vain, that is, for
/// a collective that a departed rank never started. The abort ends blocked
/// collectives, also on the GPU. Also ends the leave barrier for a departed
/// rank that still waits for the others.
///
/// Thread-safe.
class StuckGroupAborter {
 public:
  void add(c10::intrusive_ptr<MonitoredBackend> group);

  /// Returns the groups in the order of `add`.
  std::vector<c10::intrusive_ptr<MonitoredBackend>> groups() const;

  /// Returns true if a collective of an open group may not have completed.
  bool may_be_working() const;

  /// Returns the number of collectives that this rank has started, by group
  /// name. Leaves out groups that NCCL has reported as failed, because it is
  /// unknown which of their collectives have completed. Returns an empty map if
  /// the mutex is not free within a second (the process is ending).
  std::map<std::string, uint64_t> started() const;

  /// Aborts groups that have waited in vain for half a second. The delay gives
  /// messages that a peer sent before it left time to arrive.
  /// @param store  the store of the job; a client for this thread only.
  /// @returns true while a group is open, so that it could get stuck.
  bool abort_stuck_groups(c10d::Store& store);

 private:
  struct Watched {
    c10::intrusive_ptr<MonitoredBackend> group;
    std::optional<std::chrono::steady_clock::time_point> in_vain_since;
  };

  using Vain =
      std::vector<std::pair<c10::intrusive_ptr<MonitoredBackend>, Departure>>;
  Vain in_vain(bool& is_any_open);

  mutable std::mutex mutex_;
  std::vector<Watched> groups_;
};

}  // namespace ddp::detail
