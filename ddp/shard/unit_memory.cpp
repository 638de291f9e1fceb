#include "ddp/shard/unit_memory.h"

#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/shard/sharded_units.h"
#include "ddp/shard/unit.h"

namespace ddp::detail {
namespace {

/// Refuses the operators with which a norm, a decision about all elements or
/// an optimizer that combines elements begins.
/// @param of  "parameter" or "gradient"
void refuse_over_all(const c10::FunctionSchema& op, const char* of) {
  static const std::unordered_set<std::string> over_all{
      "aten::_foreach_norm",
      "aten::abs",
      "aten::all",
      "aten::amax",
      "aten::amin",
      "aten::any",
      "aten::argmax",
      "aten::cat",
      "aten::dot",
      "aten::isfinite",
      "aten::isinf",
      "aten::isnan",
      "aten::linalg_norm",
      "aten::linalg_vector_norm",
      "aten::max",
      "aten::mean",
      "aten::min",
      "aten::norm",
      "aten::pow",
      "aten::square",
      "aten::std",
      "aten::sum",
      "aten::var"};
  TORCH_CHECK(over_all.count(op.name()) == 0,
              "Expected an optimizer that computes each element by itself, or "
              "a norm of the gradients of all ranks, but ",
              op.name(),
              " got this rank's part of a ",
              of,
              "; clip by model->clip_grad_norm_, skip steps by its result or "
              "by a ddp::GradScaler, and train with SGD, Adam, AdamW, RMSprop "
              "or Adagrad. A clone() of the part may be used");
}

}  // namespace

UnitStorage::UnitStorage(Unit* of)
    : WatchedStorage(of->bytes(),
                     of->slab().device(),
                     of->owner().text_without_memory(*of)),
      unit(of),
      name_(of->name()) {}

at::Tensor UnitStorage::before_operator(const c10::FunctionSchema& op,
                                        bool writes) const {
  // aten::set_, which torch::load calls, replaces the memory.
  TORCH_CHECK(!writes || (unit != nullptr && unit->is_private() &&
                          op.name() != "aten::set_"),
              "Expected an operator that reads the parameters ",
              name_,
              ", but got ",
              op.name(),
              ", which writes to one; give model->parameters() to the "
              "optimizer, load by ddp::Checkpoint, or write in the scope of "
              "a ddp::WholeParameters");
  return unit == nullptr || unit->is_private() || !reads_values(op)
             ? at::Tensor()
             : unit->owner().before_operator(*unit);
}

SlabStorage::SlabStorage(const Unit* of)
    : WatchedStorage(
          static_cast<int64_t>(of->slab().nbytes()),
          of->slab().device(),
          "Expected the optimizer's step after backward(), outside of a "
          "ddp::NoSyncGuard, and before the next forward or collective, "
          "because the ranks read the parameters from then on, but something "
          "asked for the memory of this rank's part of " +
              of->name() +
              " afterwards; evaluate after the step, make the steps of all "
              "optimizers one after the other, and compute a penalty on "
              "weights from model->module()->parameters()"),
      unit(of) {
  set_memory(of->slab());
}

at::Tensor SlabStorage::before_operator(const c10::FunctionSchema& op,
                                        bool /*writes*/) const {
  refuse_over_all(op, "parameter");
  TORCH_CHECK(op.name() != "aten::uniform_" && op.name() != "aten::normal_",
              "Expected initial values for whole parameters, but ",
              op.name(),
              " got this rank's part of one, which has another shape; "
              "initialise model->module()->parameters() before the module is "
              "wrapped, or in the scope of a ddp::WholeParameters");
  return {};
}

ShardGradientStorage::ShardGradientStorage(const at::Tensor& memory)
    : WatchedStorage(static_cast<int64_t>(memory.nbytes()),
                     memory.device(),
                     /*error=*/"") {
  set_memory(memory);
}

at::Tensor ShardGradientStorage::before_operator(const c10::FunctionSchema& op,
                                                 bool /*writes*/) const {
  refuse_over_all(op, "gradient");
  return {};
}

NoMeanStorage::NoMeanStorage(const Unit& unit)
    : WatchedStorage(
          static_cast<int64_t>(unit.slab().nbytes()),
          unit.slab().device(),
          "Expected the last pass before a step outside of a "
          "ddp::NoSyncGuard, which averages the gradients of all passes, but "
          "something got the gradients of " +
              unit.name() +
              " after passes under the guard alone; make that pass, or drop "
              "the gradients by zero_grad() with set_to_none") {}

at::Tensor NoMeanStorage::before_operator(const c10::FunctionSchema& op,
                                          bool /*writes*/) const {
  TORCH_CHECK(op.name() == "aten::detach_", error());
  return {};
}

NoGradientStorage::NoGradientStorage(const Unit& of, size_t parameter)
    : WatchedStorage(
          of.bytes(),
          of.slab().device(),
          "Expected the gradients of model->parameters(), but something got "
          "those of the module's own parameters " +
              of.name() +
              ", which have none; give model->parameters() to the optimizer, "
              "clip by model->clip_grad_norm_, and reset by zero_grad() of the "
              "optimizer or the model"),
      unit(&of),
      parameter_(parameter) {}

at::Tensor NoGradientStorage::before_operator(const c10::FunctionSchema& op,
                                              bool /*writes*/) const {
  TORCH_CHECK(op.name() == "aten::detach", error());
  if (unit != nullptr) {
    unit->leaves()[parameter_].mutable_grad().reset();
  }
  return {};
}

}  // namespace ddp::detail
