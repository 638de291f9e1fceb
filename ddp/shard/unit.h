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

class HostUnits;
class SlabStorage;
class UnitStorage;

/// Parameters whose memory the ranks of a host share: one slab of each rank,
/// side by side. Each rank writes to its own slab alone, through the leaves:
/// the parts of the parameters that lie in it. In one of two states:
/// - writable: the leaves have memory, the parameters have none.
/// - readable: the parameters have memory. Access to a leaf throws, because
///   other ranks may read its memory.
///
/// A parameter keeps its tensor, shape and strides. Access to memory that is
/// not there throws c10::Error from any operator, and from `data_ptr`.
class Unit {
 public:
  /// Moves the parameters into the slabs, without their values. The unit is
  /// writable.
  /// @param parameters  of the plan, in its order.
  /// @param slabs  of all ranks, which the unit keeps.
  Unit(HostUnits& owner,
       std::vector<NamedParameter> parameters,
       const UnitPlan& plan,
       std::shared_ptr<std::byte> slabs,
       int rank,
       int ranks);
  /// The tensors may outlive the unit and have no memory then.
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  HostUnits& owner() const { return owner_; }
  /// "fc1.weight" or "fc1.weight to fc2.bias", for errors.
  const std::string& name() const { return name_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const UnitPlan& plan() const { return plan_; }
  /// This rank's part of each parameter, of one dimension; perhaps empty.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  /// The first element of a rank's part of a parameter, and the part's size.
  std::pair<int64_t, int64_t> part_of(size_t parameter, int rank) const;

  /// The memory of all slabs, of one dimension, in every state. Only this
  /// rank's slab may be written to.
  const at::Tensor& slabs() const { return slabs_; }
  /// This rank's slab, as above.
  at::Tensor slab() const;
  /// Returns a parameter's elements in `whole`, which has the shape of
  /// `slabs()`, with the parameter's shape and strides.
  at::Tensor view_of(const at::Tensor& whole, size_t parameter) const;

  /// Ends the access to the leaves, until `make_writable`.
  void seal();
  /// The values may be others than before: a graph that has kept a parameter
  /// throws in its backward pass.
  void make_readable();
  void make_writable();
  /// Gives the parameters memory of their own, which may be written to.
  /// @param whole  of the shape of `slabs()`.
  void make_private(const at::Tensor& whole);
  bool is_private() const { return private_.defined(); }
  /// Copies this rank's part of that memory into its slab.
  void keep_private();

  /// Copies the gradients of this rank's slab.
  void set_gradients(const at::Tensor& mean);
  /// Adds the gradients of the last `set_gradients` to `.grad` of the leaves.
  /// The parameters get gradients that throw from any operator: a program that
  /// clips, steps or reads them takes them for the leaves'.
  /// @param is_kept  of each parameter: its leaf keeps its `.grad`.
  void add_gradients(const std::vector<bool>& is_kept);

  /// Removes these gradients before a backward pass. If the program has done
  /// so, by the module's own zero_grad(), resets the leaves' gradients.
  void clear_gradients();

  /// @throws c10::Error if a parameter has other memory than the unit's.
  void check_parameters() const;

 private:
  HostUnits& owner_;
  std::vector<NamedParameter> parameters_;
  const UnitPlan plan_;
  const int rank_;
  const std::string name_;
  at::Tensor slabs_;
  c10::intrusive_ptr<UnitStorage> storage_;  // of the parameters
  c10::intrusive_ptr<SlabStorage> slab_;     // of the leaves
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> no_gradients_;  // of the parameters, after a pass
  std::vector<bool> is_cleared_;  // of each: has another `.grad` or none
  at::Tensor private_;            // of make_private
  at::Tensor gradients_;          // their memory, of the size of the slab
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
