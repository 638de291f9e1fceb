#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/shared_memory/shared_memory.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {

/// Units for ranks on one host, which share the memory of all slabs, side by
/// side. The agreement of the ranks:
/// - After a forward has begun on all ranks, and until all have ended the next
///   reduced backward pass, each rank may read all parameters.
/// - Then each rank may change its slabs, and no rank reads. A rank ends its
///   step when it begins the next forward, or waits for a collective after a
///   leaf has changed. A forward waits until all ranks have ended their steps.
///   So one rank may evaluate alone while the others wait for it.
class HostUnits : public ShardedUnits {
 public:
  /// Moves the parameters into shared memory, unit by unit, with rank 0's
  /// values. Collective.
  /// @param parameters  dense, on the CPU; no two share memory.
  /// @param memory  with an empty arena for each rank of the group.
  /// @param cap_bytes  of a unit; see `plan_units`.
  /// @throws c10::Error on all ranks if the kernel gives one rank no memory.
  HostUnits(const std::vector<NamedParameter>& parameters,
            c10::intrusive_ptr<c10d::Backend> group,
            std::shared_ptr<SharedMemory> memory,
            int64_t cap_bytes);
  /// Ends this rank's step, unless an exception is on its way.
  ~HostUnits() override;

  void begin_writing() override;
  void begin_writing_together() override;
  at::Tensor before_operator(Unit& unit) override;
  std::string text_without_memory(const Unit& unit) const override;

 protected:
  /// Waits for the other ranks' steps.
  /// @throws c10::Error if a rank has left before, or if the time-out of the
  ///   group is over.
  void prepare_reading() override;
  void end_step() override;
  at::Tensor copy_of(const Unit& unit) override;

 private:
  RankCounter& steps_of(int rank) const;
  void map_unit(const std::vector<NamedParameter>& parameters,
                const UnitPlan& plan);
  void wait_for_step(int rank);
  void end_step_if_changed();
  int64_t versions() const;

  const std::shared_ptr<SharedMemory> memory_;
  uint64_t counters_ = 0;  // offset in each arena of the rank's counter
  std::vector<at::Tensor> wholes_;  // memory of all slabs, by unit

  bool has_stepped_ = false;  // this rank, in this round
  SumNumber round_ = 0;       // number of times that the ranks may step
  int64_t versions_ = 0;      // of the leaves, at the beginning of the round
  std::thread::id thread_;    // the training thread
  std::shared_ptr<const void> before_waits_;
};

}  // namespace ddp::detail
