#include "ddp/shard/sharded_units.h"

#include <exception>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/text_collectives.h"
#include "ddp/shard/operator_watch.h"

namespace ddp::detail {

ShardedUnits::ShardedUnits(c10::intrusive_ptr<c10d::Backend> group)
    : group_(std::move(group)) {
  watch_operators();
}

std::vector<ShardSpec> ShardedUnits::specs_of(
    const std::vector<NamedParameter>& parameters) {
  std::vector<ShardSpec> specs;
  for (const auto& [name, tensor, sparse] : parameters) {
    specs.push_back(
        {tensor.numel(), tensor.scalar_type(), tensor.requires_grad()});
  }
  return specs;
}

Unit& ShardedUnits::add_unit(const std::vector<NamedParameter>& parameters,
                             const UnitPlan& plan,
                             at::Tensor slab,
                             c10::ScalarType dtype) {
  std::vector<NamedParameter> members;
  for (const size_t index : plan.parameters) {
    members.push_back(parameters[index]);
  }
  units_.push_back(std::make_unique<Unit>(
      *this, units_.size(), std::move(members), plan, std::move(slab), dtype));
  return *units_.back();
}

void ShardedUnits::check_not_private(const char* user) const {
  TORCH_CHECK(!units_.front()->is_private(),
              "Expected no ",
              user,
              " of a FullyShardedDataParallel, and no other WholeParameters of "
              "it, in the scope of a WholeParameters, because each rank reads "
              "its own copy of the parameters there; end the scope first");
}

void ShardedUnits::begin_reading() {
  check_not_private("forward");
  for (const auto& unit : units_) {
    unit->check_parameters();
  }
  if (is_readable_) {
    return;
  }
  prepare_reading();
  is_readable_ = true;
  for (const auto& unit : units_) {
    unit->make_readable();
  }
}

void ShardedUnits::begin_writing() {
  is_readable_ = false;
  for (const auto& unit : units_) {
    unit->make_writable();
  }
}

void ShardedUnits::make_private() {
  const c10::NoGradGuard no_grad;
  begin_reading();
  for (const auto& unit : units_) {
    unit->make_private(copy_of(*unit));
  }
}

void ShardedUnits::end_private(bool keeps) noexcept {
  const c10::NoGradGuard no_grad;
  try {
    TORCH_CHECK(keeps, "an exception has left the scope of a WholeParameters");
    all_gather_text(*group_,
                    units_.front()->slab().device(),
                    "",
                    "the copies of all parameters");
    for (const auto& unit : units_) {
      unit->keep_private();
    }
  } catch (const std::exception& error) {
    abort_and_announce(*group_, text_of(error));
  }
  begin_writing();
  end_step();
}

void ShardedUnits::begin_pass() {
  check_not_private("backward pass");
  for (const auto& unit : units_) {
    unit->drop_local();
  }
}

void ShardedUnits::forget_local() {
  for (const auto& unit : units_) {
    unit->forget_local();
  }
}

void ShardedUnits::clear_gradients() {
  for (const auto& unit : units_) {
    unit->clear_gradients();
  }
}

std::string ShardedUnits::text_before_forward(const Unit& unit) {
  return "Expected a forward of the FullyShardedDataParallel before the "
         "parameters " +
         unit.name() +
         " are read, because other ranks may change them between the end of a "
         "backward pass and the next forward; call the wrapper "
         "(model->forward, model->call), make each backward pass before the "
         "next forward, save by ddp::Checkpoint, or read in the scope of a "
         "ddp::WholeParameters";
}

}  // namespace ddp::detail
