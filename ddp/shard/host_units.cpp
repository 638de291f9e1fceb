#include "ddp/shard/host_units.h"

#include <chrono>
#include <string>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "ddp/job/monitored_backend.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

/// Allocates memory at one offset in all arenas and returns the offset.
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
    : ShardedUnits(std::move(group)), memory_(std::move(memory)) {
  counters_ = allocate_alike(*this->group(), *memory_, sizeof(RankCounter));
  for (const auto& plan :
       plan_units(specs_of(parameters), cap_bytes, memory_->ranks())) {
    map_unit(parameters, plan);
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
void HostUnits::map_unit(const std::vector<NamedParameter>& parameters,
                         const UnitPlan& plan) {
  const c10::NoGradGuard no_grad;
  const int rank = group()->getRank();
  const int ranks = memory_->ranks();
  std::vector<at::Tensor> values;
  for (const size_t index : plan.parameters) {
    values.push_back(parameters[index].tensor.detach());
  }
  const uint64_t item = values.front().itemsize();
  const uint64_t bytes = static_cast<uint64_t>(plan.slab) * item;
  const uint64_t offset = allocate_alike(*group(), *memory_, bytes);
  auto slabs = memory_->map_side_by_side(offset, bytes, rank);
  void* begin = slabs.get();
  const auto& whole = wholes_.emplace_back(at::from_blob(
      begin,
      {plan.slab * ranks},
      [held = std::move(slabs)](void*) {},
      values.front().options()));
  const auto& unit = add_unit(parameters,
                              plan,
                              whole.narrow(0, plan.slab * rank, plan.slab),
                              whole.scalar_type());
  for (size_t i = 0; i < values.size(); ++i) {
    for (int other = 0; rank == 0 && other < ranks; ++other) {
      const auto [first, size] = unit.part_of(i, other);
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
  all_gather_text(*group(), c10::kCPU, "", "the values of shared parameters");
}

RankCounter& HostUnits::steps_of(int rank) const {
  return *reinterpret_cast<RankCounter*>(memory_->arena(rank) + counters_);
}

void HostUnits::prepare_reading() {
  thread_ = std::this_thread::get_id();
  end_step();
  for (int rank = 0; rank < memory_->ranks(); ++rank) {
    wait_for_step(rank);
  }
  for (const auto& unit : units()) {
    unit->set_memory(wholes_[unit->index()]);
  }
}

void HostUnits::begin_writing() {
  thread_ = std::this_thread::get_id();
  has_stepped_ = false;
  ++round_;
  ShardedUnits::begin_writing();
  versions_ = versions();
}

void HostUnits::begin_writing_together() {
  all_gather_text(*group(), c10::kCPU, "", "the end of reading parameters");
  begin_writing();
}

/// Readable parameters have memory already.
at::Tensor HostUnits::before_operator(Unit& /*unit*/) {
  return {};
}

std::string HostUnits::text_without_memory(const Unit& unit) const {
  return text_before_forward(unit);
}

at::Tensor HostUnits::copy_of(const Unit& unit) {
  return wholes_[unit.index()].clone();
}

/// Reads the counter once more after a problem: a rank may have ended its step
/// and then left.
void HostUnits::wait_for_step(int rank) {
  auto& counter = steps_of(rank);
  if (has_reached(counter, round_)) {
    return;
  }
  const std::string what = "wait for the optimizer step of rank " +
                           std::to_string(rank) + " of the group";
  const auto* job = monitored_backend_of(*group());
  const auto timeout =
      job ? job->timeout() : group()->getBackendOptions()->timeout;
  const auto end = std::chrono::steady_clock::now() + timeout;
  const GroupWaitScope waits(*group(), what);
  std::string problem;
  while (!wait_for_counter(counter, round_, /*spins=*/false)) {
    if (!problem.empty()) {
      fail_collective(*group(), what, problem);
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
    for (const auto& unit : units()) {
      unit->seal();
    }
    advance_counter(steps_of(group()->getRank()), round_);
  }
}

/// Waits of other threads do not end the step.
void HostUnits::end_step_if_changed() {
  if (std::this_thread::get_id() == thread_ && !has_stepped_ &&
      versions() != versions_) {
    end_step();
  }
}

int64_t HostUnits::versions() const {
  int64_t sum = 0;
  for (const auto& unit : units()) {
    for (const auto& leaf : unit->leaves()) {
      sum += leaf._version();
    }
  }
  return sum;
}

}  // namespace ddp::detail
