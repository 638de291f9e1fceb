#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/unit.h"

namespace ddp::detail {

/// The units of a module. The ranks agree when they read the parameters and
/// when they change the leaves. There are two forms: `HostUnits` and
/// `GatheredUnits`.
///
/// Thread contract: one call at a time, from the thread that trains;
/// `before_operator` from any thread.
class ShardedUnits {
 public:
  virtual ~ShardedUnits() = default;
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const c10::intrusive_ptr<c10d::Backend>& group() const { return group_; }

  /// Lets this rank read all parameters, before a forward.
  /// @throws c10::Error if a parameter has other memory than its unit's, or
  ///   between `make_private` and `end_private`.
  void begin_reading();
  /// Lets this rank change its slabs. All ranks have ended their backward
  /// passes.
  virtual void begin_writing();
  /// As `begin_writing`, at any time. Collective.
  virtual void begin_writing_together() = 0;

  /// Called before an operator reads parameters of a unit. The result is kept
  /// until the operator has returned.
  /// @throws c10::Error if the parameters must not be read now.
  virtual at::Tensor before_operator(Unit& unit) = 0;

  /// Gives each parameter memory of this rank alone, with its values.
  /// Collective.
  void make_private();
  /// Ends `make_private`: copies the values that this rank has written into its
  /// slabs. Collective.
  /// @param keeps  false if an exception is on its way: nothing is kept, and
  ///   the group is closed.
  void end_private(bool keeps) noexcept;

  /// Calls `Unit::clear_gradients` of all units.
  void clear_gradients();
  /// Calls `Unit::forget_local` of all units.
  void forget_local();
  /// Drops the gradients of local passes that the program has reset, before
  /// others are averaged.
  /// @throws c10::Error between `make_private` and `end_private`.
  void begin_pass();

  /// Returns the error of an access, other than by an operator, to parameters
  /// without memory.
  virtual std::string text_without_memory(const Unit& unit) const = 0;

 protected:
  /// Takes the key of `watch_operators`.
  explicit ShardedUnits(c10::intrusive_ptr<c10d::Backend> group);

  /// Called in `begin_reading` if this rank may not read already.
  virtual void prepare_reading() {}
  /// Tells the other ranks that this rank does not change its slabs until the
  /// next `begin_writing`.
  virtual void end_step() {}
  /// Returns a copy of all slabs' memory, which this rank may write to.
  /// Collective.
  virtual at::Tensor copy_of(const Unit& unit) = 0;
  /// Returns the error of a read before a forward.
  static std::string text_before_forward(const Unit& unit);

  /// Describes parameters for `plan_units`.
  static std::vector<ShardSpec> specs_of(
      const std::vector<NamedParameter>& parameters);
  /// Returns the elements of a dense tensor in the order of memory.
  static at::Tensor elements_of(const at::Tensor& tensor) {
    return tensor.as_strided({tensor.numel()}, {1});
  }
  /// Adds a unit of these parameters; see `Unit`.
  Unit& add_unit(const std::vector<NamedParameter>& parameters,
                 const UnitPlan& plan,
                 at::Tensor slab,
                 c10::ScalarType dtype);
  bool is_readable() const { return is_readable_; }

 private:
  void check_not_private(const char* user) const;

  const c10::intrusive_ptr<c10d::Backend> group_;
  std::vector<std::unique_ptr<Unit>> units_;
  bool is_readable_ = false;
};

}  // namespace ddp::detail
