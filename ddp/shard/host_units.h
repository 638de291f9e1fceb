#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/unit.h"
#include "ddp/shared_memory/shared_memory.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {

/// The units of a module whose ranks are on one host, and the agreement of the
/// ranks on who may read or write them:
/// - After a forward has begun on all ranks, and until all have ended the next
///   reduced backward pass, each rank may read all parameters.
/// - From then on each rank may change its slabs, and nobody reads. A rank ends
///   this when it begins the next forward, or waits for a collective after a
///   leaf has changed: its step is over. A forward waits for all ranks' steps.
///   So one rank may evaluate alone while the others wait for it.
///
/// Thread contract: one call at a time, from the thread that trains.
class HostUnits {
 public:
  /// Moves the parameters into shared memory, unit by unit, with rank 0's
  /// values. Collective.
  /// @param parameters  dense, on the CPU; of each the memory is its own.
  /// @param memory  with an arena for each rank of the group, where no rank has
  ///   allocated anything.
  /// @param cap_bytes  of a unit; see `plan_units`.
  /// @throws c10::Error on all ranks if the kernel gives one rank no memory.
  HostUnits(const std::vector<NamedParameter>& parameters,
            c10::intrusive_ptr<c10d::Backend> group,
            std::shared_ptr<SharedMemory> memory,
            int64_t cap_bytes);
  /// Ends this rank's step, unless an exception is on its way.
  ~HostUnits();
  HostUnits(const HostUnits&) = delete;
  HostUnits& operator=(const HostUnits&) = delete;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const c10::intrusive_ptr<c10d::Backend>& group() const { return group_; }

  /// Lets this rank read all parameters; waits for the other ranks' steps.
  /// @throws c10::Error if a rank has left before, if the time-out of the group
  ///   is over, or if a parameter has other memory.
  void begin_reading();
  /// Lets this rank change its slabs: all ranks have ended their reading.
  void begin_writing();
  /// As `begin_writing`, after all ranks have called it. Collective.
  void begin_writing_together();

  /// Gives each parameter memory of this rank alone, with its values. Call it
  /// on all ranks.
  void make_private();
  /// Ends `make_private`: this rank's slabs get what this rank has written.
  /// Collective.
  /// @param keeps  false if an exception is on its way: nothing is kept, and
  ///   the group is closed.
  void end_private(bool keeps) noexcept;

  /// Calls `Unit::clear_gradients` of all units.
  void clear_gradients();

 private:
  RankCounter& steps_of(int rank) const;
  void add_unit(const std::vector<NamedParameter>& parameters,
                const UnitPlan& plan);
  void wait_for_steps(int rank);
  void end_step();
  void end_step_if_changed();
  int64_t versions() const;

  const c10::intrusive_ptr<c10d::Backend> group_;
  const std::shared_ptr<SharedMemory> memory_;
  uint64_t counters_ = 0;  // offset in each arena of the rank's counter
  std::vector<std::unique_ptr<Unit>> units_;

  bool is_readable_ = false;
  bool has_stepped_ = false;  // this rank, in this round
  SumNumber round_ = 0;       // number of times that the ranks may step
  int64_t versions_ = 0;      // of the leaves, at the begin of the round
  std::thread::id thread_;    // that trains
  std::shared_ptr<const void> before_waits_;
};

}  // namespace ddp::detail
