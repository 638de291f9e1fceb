#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/memory_pool.h"
#include "ddp/shard/sharded_units.h"

namespace ddp::detail {

/// The units of a module whose ranks share no memory: GPUs, several hosts. Each
/// rank has the memory of its own slabs. The first operator that uses a unit
/// gathers the slabs of all ranks. The unit stays whole until two others have
/// been gathered, or until the next `begin_writing`.
///
/// All ranks gather the same units in the same order. They compare each use of
/// a unit that is not whole: which unit, and in a forward or a backward pass.
/// If the uses differ, all ranks throw, and no rank has used wrong values. The
/// unit that was used next in an earlier pass is gathered early, while this one
/// is used. A rank that uses such a unit does not wait for the comparison
/// before its next use.
class GatheredUnits : public ShardedUnits {
 public:
  /// Moves the parameters into slabs, unit by unit, with rank 0's values.
  /// Collective.
  /// @param parameters  dense, on one device; of each the memory is its own.
  ///   From the CPU they move to the device of an NCCL group.
  /// @param keeps_all  units stay whole until the next `begin_writing`.
  /// @param dtype  that floating-point parameters get; their leaves keep the
  ///   first one. std::nullopt: the first one.
  GatheredUnits(const std::vector<NamedParameter>& parameters,
                const c10::intrusive_ptr<c10d::Backend>& group,
                int64_t cap_bytes,
                bool keeps_all,
                std::optional<c10::ScalarType> dtype);
  /// Waits for gathers in progress.
  ~GatheredUnits() override;

  void begin_writing() override;
  void begin_writing_together() override { begin_writing(); }
  at::Tensor before_operator(Unit& unit) override;
  std::string text_without_memory(const Unit& unit) const override;

 protected:
  at::Tensor copy_of(const Unit& unit) override;

 private:
  enum Use { kForward, kBackward, kEvaluation, kCopy };
  static constexpr size_t kUses = 4;

  /// A comparison of what the ranks use.
  struct Comparison {
    c10::intrusive_ptr<c10d::Work> work;  // null: none is in progress
    at::Tensor codes;                     // of all ranks
    std::string what;
  };

  /// The memory of all slabs of a unit.
  struct Whole {
    at::Tensor memory;  // undefined: not gathered
    at::Tensor pin;     // an alias of it, which operators keep
    std::vector<c10::intrusive_ptr<c10d::Work>> works;  // that fill the memory
    bool is_used = false;  // else it was gathered early
    /// The unit that was gathered after this one, by the use of this one.
    std::array<std::optional<size_t>, kUses> next;
  };

  Whole& whole_of(const Unit& unit) { return wholes_[unit.index()]; }
  void divide_unit(const std::vector<NamedParameter>& parameters,
                   const UnitPlan& plan,
                   std::optional<c10::ScalarType> dtype);
  at::Tensor memory_for(const Unit& unit);
  void start_comparison(const Unit& unit, Use use);
  void finish_comparison();
  void gather_next(const Unit& unit, Use use);
  void start(const Unit& unit, Whole& whole);
  void finish(const Unit& unit, Whole& whole);
  void drop(size_t index);
  void drop_all();
  void make_room(size_t most);

  const c10::intrusive_ptr<c10d::Backend> gathers_;      // for the slabs
  const c10::intrusive_ptr<c10d::Backend> comparisons_;  // of CPU tensors
  const int number_;  // of this model among those of the group
  const bool keeps_all_;
  std::mutex mutex_;             // guards the following
  Comparison comparison_;        // of the last use
  std::string difference_;       // once the ranks have used different units
  std::vector<Whole> wholes_;    // by unit
  std::deque<size_t> gathered_;  // units with memory, the oldest one first
  Whole* last_used_ = nullptr;   // in this time of reading
  Use last_use_ = kForward;      // of that unit
  int64_t most_bytes_ = 0;       // of a unit
  MemoryPool pool_;              // for units on the CPU
};

}  // namespace ddp::detail
