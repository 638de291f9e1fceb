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

/// The groups of a job, and what is done to those that wait in vain: for a
/// collective that a rank which has left did not start. They are aborted, which
/// ends what hangs, also on the GPU. A rank that has left and still waits for
/// the others is told not to.
///
/// Any thread.
class StuckGroupAborter {
 public:
  void add(c10::intrusive_ptr<MonitoredBackend> group);

  /// In the order in which they were added.
  std::vector<c10::intrusive_ptr<MonitoredBackend>> groups() const;

  /// The collectives that this rank has started, by group, without groups that
  /// have failed: nobody knows which of theirs have ended. Nothing where the
  /// process ends in the middle of a call of these.
  std::map<std::string, uint64_t> started() const;

  /// Looks for groups that wait in vain, and ends the wait of those that have
  /// for half a second: what a peer has sent before it left may be on its way.
  /// @param store  of the job, this thread's own.
  /// @returns true while there is a group that could come to wait.
  bool look(c10d::Store& store);

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
