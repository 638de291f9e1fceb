#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "ddp/job/named_parameter.h"
#include "ddp/shard/unit_plan.h"

namespace ddp::detail {

class ShardedUnits;
class SlabStorage;
class UnitStorage;

/// Parameters in memory that is divided into one slab for each rank. Each rank
/// writes to its own slab alone, through the leaves: the parts of the
/// parameters in that slab. A unit has one of two states:
/// - writable: the leaves have memory, the parameters have none.
/// - readable: the parameters may have the memory of all slabs. Access to a
///   leaf throws, because other ranks may read its memory.
///
/// A parameter keeps its tensor, shape and strides. Access to memory that is
/// not there throws c10::Error from any operator, and from `data_ptr`.
class Unit {
 public:
  /// Moves the parameters into the slabs, without their values, and resets
  /// their `.grad`. The unit is writable.
  /// @param index  of the unit among its owner's.
  /// @param parameters  of the plan, in its order.
  /// @param slab  of this rank, of one dimension.
  /// @param dtype  of the parameters; the leaves have the slab's dtype.
  Unit(ShardedUnits& owner,
       size_t index,
       std::vector<NamedParameter> parameters,
       const UnitPlan& plan,
       at::Tensor slab,
       c10::ScalarType dtype);
  /// The tensors may outlive the unit and have no memory then.
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  ShardedUnits& owner() const { return owner_; }
  size_t index() const { return index_; }
  /// "fc1.weight" or "fc1.weight to fc2.bias", for errors.
  const std::string& name() const { return name_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const UnitPlan& plan() const { return plan_; }
  /// This rank's part of each parameter, of shape [n, 1, ..., 1] with as many
  /// dimensions as the parameter; perhaps empty.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  /// The first element of a rank's part of a parameter, and the part's size.
  std::pair<int64_t, int64_t> part_of(size_t parameter, int rank) const;

  /// This rank's slab, of one dimension, in every state.
  const at::Tensor& slab() const { return slab_; }
  /// Elements of all slabs together.
  int64_t numel() const;
  /// Options of the parameters' memory.
  at::TensorOptions options() const { return slab_.options().dtype(dtype_); }
  int64_t bytes() const {
    return numel() * static_cast<int64_t>(c10::elementSize(dtype_));
  }

  /// Ends the access to the leaves, until `make_writable`.
  void seal();
  /// Ends the access to the leaves. The values may have changed, so a graph
  /// that has kept a parameter throws in its backward pass.
  void make_readable();
  /// Gives the parameters the memory of all slabs, or none if it is undefined.
  void set_memory(const at::Tensor& whole);
  void make_writable();
  /// Gives the parameters memory of their own, which may be written to.
  /// @param whole  as in `set_memory`.
  void make_private(const at::Tensor& whole);
  bool is_private() const { return private_.defined(); }
  /// Copies this rank's part of that memory into its slab. An element that has
  /// not changed keeps the slab's precision.
  void keep_private();

  /// Returns the memory for the gradients of this rank's slab, in the slab's
  /// dtype.
  const at::Tensor& new_gradients();
  /// Adds the last `new_gradients` to `.grad` of the leaves.
  /// The parameters get gradients that throw from any operator, because a
  /// program that uses them mistakes them for the gradients of the leaves.
  /// @param is_kept  of each parameter: its leaf keeps its `.grad`.
  void add_gradients(const std::vector<bool>& is_kept);

  /// Removes the gradients of `add_gradients` from the parameters. If the
  /// program has removed them, resets the leaves' gradients; the module's own
  /// zero_grad() does so at once. Called for all units by the first gradient of
  /// a backward pass.
  void clear_gradients();

  /// @throws c10::Error if the parameter has a `.grad` that is not of
  ///   `add_gradients`: the optimizer would not see it, and the next averaged
  ///   pass would add it.
  void check_gradient(size_t parameter) const;

  /// Records that the parameter's `.grad`, if defined, is the gradient of a
  /// local pass. A leaf without a gradient gets one that throws from any
  /// operator, because an optimizer's step would leave out the local gradient.
  void keep_local(size_t parameter);
  /// Resets the gradients of such a parameter and of its leaf if the program
  /// has reset one of them. Called before other gradients come.
  /// @throws c10::Error if the program has changed the leaf's gradient in place
  ///   since the local pass.
  void drop_local();
  /// Ends these records, and the gradients that throw.
  void forget_local();

  /// @throws c10::Error if a parameter or a leaf has other memory than the
  ///   unit's, or if the program has set a hook or requires_grad of a leaf
  ///   instead of its parameter's.
  void check_parameters() const;

 private:
  void drop_local(size_t parameter);
  void renew_gradients();

  ShardedUnits& owner_;
  const size_t index_;
  std::vector<NamedParameter> parameters_;
  const UnitPlan plan_;
  const std::string name_;
  const at::Tensor slab_;
  const c10::ScalarType dtype_;                   // of the parameters
  c10::intrusive_ptr<UnitStorage> storage_;       // of the parameters
  c10::intrusive_ptr<SlabStorage> leaf_storage_;  // of the leaves
  std::vector<at::Tensor> leaves_;
  std::vector<unsigned> hooks_;           // of the parameters that train
  std::vector<at::Tensor> no_gradients_;  // of the parameters, after a pass
  std::vector<at::Tensor> no_means_;      // of the leaves, after a local pass
  std::vector<bool> has_local_;           // parameters, since the last mean
  std::vector<int64_t> versions_;         // of their leaves' gradients then
  bool is_cleared_ = true;  // the parameters have other `.grad` or none
  at::Tensor private_;      // of make_private
  at::Tensor gradients_;    // of the slab
};

/// The place of a parameter.
struct UnitPlace {
  const Unit* unit = nullptr;
  size_t index = 0;
};
/// Returns the place of a parameter, of an alias of one with the same shape, or
/// of a leaf.
UnitPlace unit_place_of(const at::Tensor& tensor);

}  // namespace ddp::detail
