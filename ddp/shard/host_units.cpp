#include "ddp/shard/host_units.h"

#include <chrono>
#include <exception>
#include <string>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/shard/operator_watch.h"

namespace ddp::detail {
namespace {

/// Returns the elements of a dense tensor in the order of memory.
at::Tensor elements_of(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

/// Allocates memory at the same offset of all arenas, which it returns.
/// Collective.
uint64_t allocate_alike(c10d::Backend& group,
                        SharedMemory& memory,
                        uint64_t bytes) {
  const auto offset = memory.allocate_kept(bytes, group.getRank());
  const auto all = all_gather_text(group,
                                   c10::kCPU,
                                   offset ? std::to_string(*offset) : "none",
                                   "the places of shared parameters");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK(all[rank] != "none",
                "Expected shared memory for ",
                bytes,
                " bytes of parameters, but the kernel gave rank ",
                rank,
                " none; give the job more memory");
    TORCH_INTERNAL_ASSERT(all[rank] == all[0]);
  }
  return *offset;
}

}  // namespace

HostUnits::HostUnits(const std::vector<NamedParameter>& parameters,
                     c10::intrusive_ptr<c10d::Backend> group,
                     std::shared_ptr<SharedMemory> memory,
                     int64_t cap_bytes)
    : group_(std::move(group)), memory_(std::move(memory)) {
  watch_operators();
  counters_ = allocate_alike(*group_, *memory_, sizeof(RankCounter));
  std::vector<ShardSpec> specs;
  for (const auto& [name, tensor, sparse] : parameters) {
    specs.push_back(
        {tensor.numel(), tensor.scalar_type(), tensor.requires_grad()});
  }
  for (const auto& plan : plan_units(specs, cap_bytes, memory_->ranks())) {
    add_unit(parameters, plan);
  }
  begin_writing();
  end_step();
  before_waits_ = wait_actions().add([this] { end_step_if_changed(); });
}

HostUnits::~HostUnits() {
  wait_actions().remove(before_waits_);
  if (std::uncaught_exceptions() == 0 && memory_->is_mapped()) {
    end_step();
  }
}

/// Rank 0 writes the values into the slabs of all ranks, which wait for it. So
/// one unit at a time is in memory twice.
void HostUnits::add_unit(const std::vector<NamedParameter>& parameters,
                         const UnitPlan& plan) {
  const c10::NoGradGuard no_grad;
  const int rank = group_->getRank();
  const int ranks = memory_->ranks();
  std::vector<NamedParameter> members;
  std::vector<at::Tensor> values;
  for (const size_t index : plan.parameters) {
    members.push_back(parameters[index]);
    values.push_back(parameters[index].tensor.detach());
  }
  const uint64_t item = values.front().itemsize();
  const uint64_t bytes = static_cast<uint64_t>(plan.slab) * item;
  const uint64_t offset = allocate_alike(*group_, *memory_, bytes);
  const auto& unit = units_.emplace_back(
      std::make_unique<Unit>(*this,
                             std::move(members),
                             plan,
                             memory_->map_side_by_side(offset, bytes, rank),
                             rank,
                             ranks));
  for (size_t i = 0; i < values.size(); ++i) {
    for (int other = 0; rank == 0 && other < ranks; ++other) {
      const auto [first, size] = unit->part_of(i, other);
      if (size > 0) {
        const auto place =
            static_cast<uint64_t>(plan.offsets[i] + first - plan.slab * other);
        at::from_blob(memory_->arena(other) + offset + place * item,
                      {size},
                      values[i].options())
            .copy_(elements_of(values[i]).narrow(0, first, size));
      }
    }
    values[i].reset();
  }
  all_gather_text(*group_, c10::kCPU, "", "the values of shared parameters");
}

RankCounter& HostUnits::steps_of(int rank) const {
  return *reinterpret_cast<RankCounter*>(memory_->arena(rank) + counters_);
}

void HostUnits::begin_reading() {
  for (const auto& unit : units_) {
    unit->check_parameters();
  }
  thread_ = std::this_thread::get_id();
  if (is_readable_) {
    return;
  }
  end_step();
  for (int rank = 0; rank < memory_->ranks(); ++rank) {
    wait_for_steps(rank);
  }
  is_readable_ = true;
  for (const auto& unit : units_) {
    unit->make_readable();
  }
}

void HostUnits::begin_writing() {
  thread_ = std::this_thread::get_id();
  is_readable_ = false;
  has_stepped_ = false;
  ++round_;
  for (const auto& unit : units_) {
    unit->make_writable();
  }
  versions_ = versions();
}

void HostUnits::begin_writing_together() {
  all_gather_text(*group_, c10::kCPU, "", "the end of reading parameters");
  begin_writing();
}

void HostUnits::make_private() {
  const c10::NoGradGuard no_grad;
  begin_reading();
  for (const auto& unit : units_) {
    unit->make_private(unit->slabs().clone());
  }
}

void HostUnits::end_private(bool keeps) noexcept {
  const c10::NoGradGuard no_grad;
  try {
    TORCH_CHECK(keeps, "an exception has left the scope of a WholeParameters");
    all_gather_text(*group_, c10::kCPU, "", "the copies of all parameters");
    for (const auto& unit : units_) {
      unit->keep_private();
    }
  } catch (const std::exception& error) {
    abort_and_announce(*group_, text_of(error));
  }
  begin_writing();
  end_step();
}

void HostUnits::clear_gradients() {
  for (const auto& unit : units_) {
    unit->clear_gradients();
  }
}

/// The last rank's step may be over although it has left since.
void HostUnits::wait_for_steps(int rank) {
  auto& counter = steps_of(rank);
  if (has_reached(counter, round_)) {
    return;
  }
  const std::string what = "wait for the optimizer step of rank " +
                           std::to_string(rank) + " of the group";
  const auto* job = monitored_backend_of(*group_);
  const auto timeout =
      job ? job->timeout() : group_->getBackendOptions()->timeout;
  const auto end = std::chrono::steady_clock::now() + timeout;
  const GroupWaitScope waits(*group_, what);
  std::string problem;
  while (!wait_for_counter(counter, round_, /*spins=*/false)) {
    if (!problem.empty()) {
      fail_collective(*group_, what, problem);
    }
    if (std::chrono::steady_clock::now() > end) {
      problem = "Timed out";
    }
    if (job != nullptr &&
        (!job->is_open() ||
         job->record()->departure_of(
             job->members().ranks[static_cast<size_t>(rank)]))) {
      problem = "the rank has left";
    }
  }
}

void HostUnits::end_step() {
  if (!std::exchange(has_stepped_, true)) {
    for (const auto& unit : units_) {
      unit->seal();
    }
    advance_counter(steps_of(group_->getRank()), round_);
  }
}

/// Other threads may wait during a step.
void HostUnits::end_step_if_changed() {
  if (std::this_thread::get_id() == thread_ && !has_stepped_ &&
      versions() != versions_) {
    end_step();
  }
}

int64_t HostUnits::versions() const {
  int64_t sum = 0;
  for (const auto& unit : units_) {
    for (const auto& leaf : unit->leaves()) {
      sum += leaf._version();
    }
  }
  return sum;
}

}  // namespace ddp::detail
