#include "ddp/checkpoint/detail/sharded_state.h"

#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>

#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/job/collectives.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/shard/unit.h"
#include "ddp/tensors/expanded.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp::detail {
namespace {

using c10::IValue;

/// Returns the place of a leaf, or of a parameter without memory of this rank
/// alone.
UnitPlace sharded_place_of(const at::Tensor& tensor) {
  const auto place = unit_place_of(tensor);
  const bool is_private = place.unit != nullptr && place.unit->is_private() &&
                          shard_storage_of(tensor) == nullptr;
  return is_private ? UnitPlace() : place;
}

}  // namespace

IValue whole_parameter(const at::Tensor& tensor) {
  const auto [unit, index] = sharded_place_of(tensor);
  if (unit == nullptr) {
    return tensor;
  }
  // The leaf itself cannot be read while the ranks read the parameters.
  const auto& leaf = unit->leaves()[index];
  return whole_state(
      leaf, unit->slab().narrow(0, leaf.storage_offset(), leaf.numel()));
}

IValue whole_state(const at::Tensor& parameter, const at::Tensor& state) {
  const auto [unit, index] = sharded_place_of(parameter);
  if (unit == nullptr) {
    return state;
  }
  const auto& like = unit->parameters()[index].tensor;
  const auto& group = unit->owner().group();
  const auto part = state.flatten();
  return IValue::make_capsule(c10::make_intrusive<DeferredTensor>(
      at::empty_strided(
          like.sizes(), like.strides(), part.options().device(c10::kMeta)),
      [group, part] {
        const auto parts = gather(part, /*to=*/0, group);
        return parts.empty() ? at::Tensor() : at::cat(parts).cpu();
      },
      TensorRun{part, unit->part_of(index, group->getRank()).first}));
}

at::Tensor own_part(const at::Tensor& parameter, const at::Tensor& whole) {
  const auto [unit, index] = sharded_place_of(parameter);
  if (unit == nullptr) {
    return whole;
  }
  const auto& like = unit->parameters()[index].tensor;
  TORCH_CHECK(whole.sizes() == like.sizes(),
              "expected the shape ",
              like.sizes(),
              ", but got ",
              whole.sizes());
  const auto elements =
      whole.strides() == like.strides()
          ? whole
          : at::empty_strided(like.sizes(), like.strides(), whole.options())
                .copy_(whole);
  const auto& leaf = unit->leaves()[index];
  const int rank = unit->owner().group()->getRank();
  return elements.as_strided(
      leaf.sizes(),
      leaf.strides(),
      elements.storage_offset() + unit->part_of(index, rank).first);
}

void begin_loading(const StateDict& mine) {
  std::set<ShardedUnits*> begun;
  for (const auto& item : mine) {
    const auto* unit = sharded_place_of(item.value()).unit;
    if (unit != nullptr && begun.insert(&unit->owner()).second) {
      unit->owner().begin_writing_together();
    }
  }
}

void load_tensor(const at::Tensor& mine, const at::Tensor& value) {
  const auto [unit, index] = sharded_place_of(mine);
  if (unit == nullptr) {
    return copy_once(mine, value);
  }
  at::Tensor leaf = unit->leaves()[index];
  leaf.copy_(own_part(mine, value));
}

}  // namespace ddp::detail
