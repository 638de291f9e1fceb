#include "ddp/checkpoint/detail/sharded_state.h"

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ops/empty_strided.h>

#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/shard/unit.h"
#include "ddp/tensors/expanded.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp::detail {
namespace {

using c10::IValue;

/// Returns the place of a parameter without memory of this rank alone.
UnitPlace shared_place_of(const at::Tensor& tensor) {
  const auto place = unit_place_of(tensor);
  return place.unit == nullptr || place.unit->is_private() ? UnitPlace()
                                                           : place;
}

std::set<ShardedUnits*> owners_of(const StateDict& tensors) {
  std::set<ShardedUnits*> owners;
  for (const auto& item : tensors) {
    if (const auto* unit = shared_place_of(item.value()).unit) {
      owners.insert(&unit->owner());
    }
  }
  return owners;
}

/// Returns a rank's part of a tensor of the parameter's shape: a view if the
/// tensor has the parameter's strides.
at::Tensor part_of(const UnitPlace& place, const at::Tensor& value, int rank) {
  const auto& like = place.unit->parameters()[place.index].tensor;
  TORCH_CHECK(value.sizes() == like.sizes(),
              "expected the shape ",
              like.sizes(),
              ", but got ",
              value.sizes());
  const auto [first, size] = place.unit->part_of(place.index, rank);
  if (value.strides() == like.strides()) {
    return value.as_strided({size}, {1}, value.storage_offset() + first);
  }
  // The whole copy exists during this call alone.
  return at::empty_strided(like.sizes(), like.strides(), value.options())
      .copy_(value)
      .as_strided({size}, {1}, first)
      .clone();
}

/// Returns the values of a leaf, or of its state, in the leaf's shape.
at::Tensor my_part_of(const UnitPlace& place, const at::Tensor& value) {
  return part_of(place, value, place.unit->owner().group()->getRank())
      .view_as(place.unit->leaves()[place.index]);
}

IValue deferred(const UnitPlace& place,
                const at::Tensor& part,
                std::function<at::Tensor()> read) {
  const auto& like = place.unit->parameters()[place.index].tensor;
  const int rank = place.unit->owner().group()->getRank();
  return IValue::make_capsule(c10::make_intrusive<DeferredTensor>(
      at::empty_strided(
          like.sizes(), like.strides(), part.options().device(c10::kMeta)),
      std::move(read),
      TensorRun{part, place.unit->part_of(place.index, rank).first}));
}

/// Returns the parts of all ranks as a tensor of the parameter's shape that
/// rank 0 gathers when it is read; on other ranks the read sends their parts.
IValue whole_of(const UnitPlace& place, const at::Tensor& state) {
  const auto part = state.flatten();
  return deferred(place, part, [group = place.unit->owner().group(), part] {
    return gather_elements(part, group);
  });
}

class ShardedOptimizerState : public Stateful {
 public:
  ShardedOptimizerState(std::shared_ptr<Stateful> inner,
                        torch::optim::Optimizer& optimizer)
      : inner_(std::move(inner)), optimizer_(optimizer) {}

  IValue state_dict() const override {
    return change_tensors(inner_->state_dict(), whole_of);
  }
  void check_state_dict(const IValue& state) const override {
    inner_->check_state_dict(change_tensors(state, my_part_of));
  }
  void load_state_dict(const IValue& state) override {
    // The optimizer may keep these tensors, so they must not be views.
    inner_->load_state_dict(change_tensors(
        state, [](const UnitPlace& place, const at::Tensor& value) {
          return my_part_of(place, value).clone();
        }));
  }
  CheckpointScope checkpoint_scope() const override {
    return inner_->checkpoint_scope();
  }

 private:
  using Change =
      std::function<IValue(const UnitPlace& place, const at::Tensor&)>;

  /// Returns the value of `optimizer_to_value` with other tensors as the states
  /// of leaves. A value of another form is left to the optimizer's own check.
  IValue change_tensors(const IValue& value, const Change& change) const {
    std::vector<UnitPlace> places;
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& leaf : group.params()) {
        places.push_back(unit_place_of(leaf));
      }
    }
    const auto is_steps = [](const IValue& name) {
      return name.isString() && name.toStringRef() == "step";
    };
    const auto is_dict = [](const IValue& one) { return one.isGenericDict(); };
    if (!is_dict(value) || !value.toGenericDict().contains("state") ||
        !is_dict(value.toGenericDict().at("state"))) {
      return value;
    }
    auto states = new_dict();
    for (const auto& state :
         value.toGenericDict().at("state").toGenericDict()) {
      const bool is_known =
          state.key().isInt() && is_dict(state.value()) &&
          static_cast<size_t>(state.key().toInt()) < places.size();
      auto fields = is_known ? new_dict() : state.value();
      if (is_known) {
        const auto& place = places[static_cast<size_t>(state.key().toInt())];
        for (const auto& field : state.value().toGenericDict()) {
          // Python saves the number of steps as a tensor.
          const bool is_part = place.unit != nullptr &&
                               field.value().isTensor() &&
                               !is_steps(field.key());
          fields.toGenericDict().insert(
              field.key(),
              is_part ? change(place, field.value().toTensor())
                      : field.value());
        }
      }
      states.toGenericDict().insert(state.key(), fields);
    }
    auto result = new_dict();
    for (const auto& item : value.toGenericDict()) {
      const bool is_state =
          item.key().isString() && item.key().toStringRef() == "state";
      result.toGenericDict().insert(item.key(),
                                    is_state ? states : item.value());
    }
    return result;
  }

  const std::shared_ptr<Stateful> inner_;
  torch::optim::Optimizer& optimizer_;
};

}  // namespace

StateDict with_whole_parameters(StateDict tensors) {
  StateDict result;
  for (const auto& item : tensors) {
    const auto [unit, index] = shared_place_of(item.value());
    result.insert(
        item.key(),
        unit == nullptr ? item.value() : unit->owner().value_of(*unit, index));
  }
  return result;
}

IValue with_own_parts(const StateDict& tensors) {
  auto result = to_value(tensors);
  for (const auto& item : tensors) {
    const auto place = shared_place_of(item.value());
    if (place.unit != nullptr) {
      // The leaf itself cannot be read while the ranks read the parameters.
      const auto& leaf = place.unit->leaves()[place.index];
      const auto part =
          place.unit->slab().narrow(0, leaf.storage_offset(), leaf.numel());
      result.toGenericDict().insert_or_assign(item.key(),
                                              deferred(place, part, nullptr));
    }
  }
  return result;
}

void begin_loading(const StateDict& mine) {
  for (auto* owner : owners_of(mine)) {
    owner->begin_writing_together();
  }
}

void load_tensor(const at::Tensor& mine, const at::Tensor& value) {
  const auto place = shared_place_of(mine);
  if (place.unit == nullptr) {
    return copy_once(mine, value);
  }
  at::Tensor leaf = place.unit->leaves()[place.index];
  leaf.copy_(my_part_of(place, value));
}

std::shared_ptr<Stateful> with_whole_states(
    std::shared_ptr<Stateful> state, torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& leaf : group.params()) {
      if (shard_storage_of(leaf) != nullptr) {
        return std::make_shared<ShardedOptimizerState>(std::move(state),
                                                       optimizer);
      }
    }
  }
  return state;
}

}  // namespace ddp::detail
