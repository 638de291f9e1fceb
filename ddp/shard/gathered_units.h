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
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/memory_pool.h"
#include "ddp/shard/sharded_units.h"

namespace ddp::detail {

/// Units for ranks that share no memory: GPUs, several hosts. Each rank has the
/// memory of its own slabs. The first operator that uses a unit gathers the
/// slabs of all ranks. The unit stays whole until two others have been
/// gathered, or until the next `begin_writing`.
///
/// All ranks gather the same units in the same order. They compare each use of
/// a unit that is not whole: the unit, and whether it is used in a forward or a
/// backward pass. If the uses differ, all ranks throw, and no rank has used
/// wrong values. While a unit is used, the unit that followed it in an earlier
/// pass is gathered early. The comparison of a use of a unit that was gathered
/// early ends at the next use.
class GatheredUnits : public ShardedUnits {
 public:
  /// Moves the parameters into slabs, unit by unit, with rank 0's values.
  /// Collective.
  /// @param parameters  dense, on one device; no two share memory. Parameters
  ///   on the CPU move to the device of an NCCL group.
  /// @param keeps_all  units stay whole until the next `begin_writing`.
  /// @param dtype  of floating-point parameters while they are gathered; the
  ///   leaves keep their dtype. std::nullopt: the dtype of the leaves.
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

  /// A comparison of the ranks' uses.
  struct Comparison {
    c10::intrusive_ptr<c10d::Work> work;  // null: none is in progress
    at::Tensor sent;                      // kept until the host has the codes
    at::Tensor codes;                     // of all ranks
    std::string what;
  };

  /// The memory of all slabs of a unit.
  struct Whole {
    at::Tensor memory;  // undefined: not gathered
    at::Tensor pin;     // an alias of it, which operators keep
    at::Tensor sent;    // this rank's slab, until a stream has awaited `works`
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::optional<c10::Stream> stream;  // that has started or awaited them
    bool is_used = false;               // since it was gathered
    /// The unit that was used after this one, by the use of this one.
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
  static void read_on_current_stream(const Whole& whole);
  void drop(size_t index);
  void drop_all();
  void make_room(size_t most);

  const c10::intrusive_ptr<c10d::Backend> gathers_;  // of the slabs
  /// Of CPU tensors. Over Gloo also the gathers of slabs for lower ranks.
  const c10::intrusive_ptr<c10d::Backend> comparisons_;
  const int number_;  // of this model in the group
  const bool keeps_all_;
  std::mutex mutex_;             // guards the following
  Comparison comparison_;        // of the last use
  std::string difference_;       // once the ranks have used different units
  std::vector<Whole> wholes_;    // by unit
  std::deque<size_t> gathered_;  // units with memory, the oldest one first
  Whole* last_used_ = nullptr;   // since `begin_writing`
  Use last_use_ = kForward;      // of `last_used_`
  int64_t most_bytes_ = 0;       // of the largest unit
  MemoryPool pool_;              // for units on the CPU
};

}  // namespace ddp::detail
