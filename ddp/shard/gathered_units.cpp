#include "ddp/shard/gathered_units.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/job/current_job.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

/// Number of units that stay whole, besides a unit that is gathered early. An
/// operator may need the end of one unit and the beginning of the next.
constexpr size_t kMostWhole = 2;

/// Returns another group of the same ranks, or `group` if ddp cannot connect
/// its ranks again. Gathers have a group of their own, because nothing orders
/// them with the sums of gradients. Comparisons over Gloo do not stop a GPU's
/// queue.
c10::intrusive_ptr<c10d::Backend> sibling(
    const c10::intrusive_ptr<c10d::Backend>& group,
    const std::string& purpose,
    const std::string& backend = "") {
  auto made = sibling_group(*group, purpose, backend);
  return made ? made : group;
}

/// Equal on all ranks, because they wrap their models in the same order.
int number_of_model(c10d::Backend& group) {
  auto* job = monitored_backend_of(group);
  return job == nullptr ? 0 : job->number_exchange();
}

c10::Device device_of(const at::Tensor& parameter, const c10d::Backend& group) {
  const auto own = parameter.device();
  return own.is_cpu() && group.getBackendName() == "nccl"
             ? group.getBoundDeviceId().value_or(own)
             : own;
}

constexpr std::array<const char*, 4> kNames{"a forward",
                                            "a backward pass",
                                            "a forward without gradients",
                                            "a copy of all parameters"};

/// In its scope new tensors have no graph and are no inference tensors.
struct PlainTensors {
  const c10::InferenceMode inference{false};
  const c10::NoGradGuard no_grad{};
};

}  // namespace

GatheredUnits::GatheredUnits(const std::vector<NamedParameter>& parameters,
                             const c10::intrusive_ptr<c10d::Backend>& group,
                             int64_t cap_bytes,
                             bool keeps_all,
                             std::optional<c10::ScalarType> dtype)
    : ShardedUnits(group),
      gathers_(sibling(group, "shards")),
      comparisons_(sibling(group, "shard_order", "gloo")),
      number_(number_of_model(*gathers_)),
      keeps_all_(keeps_all),
      pool_([this] { return at::empty({most_bytes_}, at::kByte); }) {
  for (const auto& plan :
       plan_units(specs_of(parameters), cap_bytes, group->getSize())) {
    divide_unit(parameters, plan, dtype);
  }
}

GatheredUnits::~GatheredUnits() {
  try {
    drop_all();
  } catch (const std::exception&) {  // the program's next call throws it
  }
}

/// One unit at a time is in memory twice.
void GatheredUnits::divide_unit(const std::vector<NamedParameter>& parameters,
                                const UnitPlan& plan,
                                std::optional<c10::ScalarType> dtype) {
  const c10::NoGradGuard no_grad;
  const int rank = group()->getRank();
  const auto& first = parameters[plan.parameters.front()].tensor;
  const auto flat = at::zeros(
      {plan.slab * group()->getSize()},
      first.options().device(device_of(first, *group())).requires_grad(false));
  for (size_t i = 0; rank == 0 && i < plan.parameters.size(); ++i) {
    const auto& value = parameters[plan.parameters[i]].tensor;
    flat.narrow(0, plan.offsets[i], value.numel()).copy_(elements_of(value));
    record_stream(value);  // its memory is freed now
  }
  broadcast_from(0, *group(), {flat});
  const auto& unit = add_unit(
      parameters,
      plan,
      flat.narrow(0, plan.slab * rank, plan.slab).clone(),
      dtype && first.is_floating_point() ? *dtype : first.scalar_type());
  wholes_.emplace_back();
  most_bytes_ = std::max(most_bytes_, unit.bytes());
}

void GatheredUnits::begin_writing() {
  {
    const std::lock_guard lock(mutex_);
    drop_all();
    last_used_ = nullptr;
  }
  ShardedUnits::begin_writing();
}

at::Tensor GatheredUnits::before_operator(Unit& unit) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(is_readable(), text_before_forward(unit));
  auto& whole = whole_of(unit);
  if (!whole.is_used) {
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    const Use use = in_backward                   ? kBackward
                    : c10::GradMode::is_enabled() ? kForward
                                                  : kEvaluation;
    const PlainTensors plain;
    start_comparison(unit, use);
    if (!whole.memory.defined()) {
      finish_comparison();
      make_room(kMostWhole - 1);
      start(unit, whole);
    }
    finish(unit, whole);
    unit.set_memory(whole.memory);
    whole.is_used = true;
    const auto in_use = whole.pin;
    make_room(kMostWhole);
    gather_next(unit, use);
  }
  read_on_current_stream(whole);
  return whole.pin;
}

/// Starts the gather of the unit that followed this use in an earlier pass. The
/// ranks have made the same uses, so they choose the same unit.
void GatheredUnits::gather_next(const Unit& unit, Use use) {
  if (last_used_ != nullptr) {
    last_used_->next[last_use_] = unit.index();
  }
  last_used_ = &whole_of(unit);
  last_use_ = use;
  const auto next = last_used_->next[use];
  if (next && !wholes_[*next].memory.defined()) {
    start(*units()[*next], wholes_[*next]);
  }
}

/// Sends this rank's use to all other ranks, after the last comparison.
void GatheredUnits::start_comparison(const Unit& unit, Use use) {
  finish_comparison();
  const auto device = comparisons_->getBackendName() == "nccl"
                          ? unit.slab().device()
                          : c10::Device(c10::kCPU);
  const auto code = static_cast<int64_t>(unit.index() * kUses + use);
  auto mine = at::tensor({int64_t{number_}, code})
                  .repeat({group()->getSize(), 1})
                  .to(device);
  auto all = at::empty_like(mine);
  std::vector<int64_t> equal;
  auto work = comparisons_->alltoall_base(all, mine, equal, equal, {});
  comparison_ = {std::move(work),
                 std::move(mine),
                 std::move(all),
                 "comparison of the parameters that the ranks use, here " +
                     unit.name() + " in " + kNames[use]};
}

/// Throws on all ranks unless all have used the same unit in the same way.
void GatheredUnits::finish_comparison() {
  TORCH_CHECK(difference_.empty(), difference_);
  const auto [work, sent, codes, what] = std::exchange(comparison_, {});
  if (!work) {
    return;
  }
  wait(work, *comparisons_, what);
  const auto all = copy_result(codes, c10::kCPU, *comparisons_, what);
  if (all.equal(all[group()->getRank()].expand_as(all))) {
    return;
  }
  std::string text;
  for (int rank = 0; rank < group()->getSize(); ++rank) {
    const auto* its = all.const_data_ptr<int64_t>() + 2 * ptrdiff_t{rank};
    const auto code = static_cast<size_t>(its[1]);
    text += c10::str(rank == 0 ? "" : ", ", "rank ", rank, " uses ");
    text += its[0] == number_ ? units()[code / kUses]->name()
                              : "those of another model";
    text += c10::str(" in ", kNames[code % kUses]);
  }
  difference_ =
      "Expected all ranks to use the same parameters of a "
      "FullyShardedDataParallel in the same order, because they gather them "
      "together, but got: " +
      text +
      "; make the same forwards and backward passes on all ranks, and the same "
      "branches in them";
  // Gathers that were started after the last equal use may never end.
  for (auto& whole : wholes_) {
    whole.works.clear();
  }
  if (gathers_->getBackendName() == "nccl") {
    gathers_->abort();
  }
  TORCH_CHECK(false, difference_);
}

at::Tensor GatheredUnits::memory_for(const Unit& unit) {
  return unit.slab().is_cpu() ? pool_.take(unit.numel(), unit.options())
                              : at::empty({unit.numel()}, unit.options());
}

void GatheredUnits::start(const Unit& unit, Whole& whole) {
  whole.memory = memory_for(unit);
  whole.pin = whole.memory.alias();
  gathered_.push_back(unit.index());
  whole.stream = current_stream(whole.memory.device());
  whole.sent = unit.slab().to(whole.memory.scalar_type());
  if (gathers_->getBackendName() == "nccl") {
    whole.works.push_back(gathers_->_allgather_base(whole.memory, whole.sent));
    return;
  }
  // Gloo's all-gather copies its tensors three times. The messages of a rank
  // that gathers another unit have another tag. The two directions have
  // connections of their own, because Gloo's thread spins while another thread
  // writes to a connection that it could read.
  const int own = gathers_->getRank();
  const int ranks = gathers_->getSize();
  const int tag = number_ << 16 | static_cast<int>(unit.index());
  const auto group_for = [this](int from, int to) {
    return from < to ? gathers_ : comparisons_;
  };
  const int64_t slab = whole.sent.numel();
  std::vector<at::Tensor> mine{whole.sent};
  for (int i = 1; i < ranks; ++i) {
    const int from = (own + i) % ranks;
    std::vector<at::Tensor> part{whole.memory.narrow(0, slab * from, slab)};
    whole.works.push_back(group_for(from, own)->recv(part, from, tag));
  }
  for (int i = 1; i < ranks; ++i) {
    const int to = (own + ranks - i) % ranks;
    whole.works.push_back(group_for(own, to)->send(mine, to, tag));
  }
  whole.memory.narrow(0, slab * own, slab).copy_(whole.sent);
}

void GatheredUnits::finish(const Unit& unit, Whole& whole) {
  const auto what = "all-gather of the parameters " + unit.name();
  for (const auto& work : std::exchange(whole.works, {})) {
    wait(work, *gathers_, what);
    whole.stream = current_stream(whole.memory.device());
  }
  if (whole.sent.defined()) {
    record_stream(std::exchange(whole.sent, {}));
  }
}

/// Only the stream of the first operator has waited for the gather. Branches of
/// a forward may run on other streams.
void GatheredUnits::read_on_current_stream(const Whole& whole) {
  join_stream(*whole.stream);
  record_stream(whole.memory);
}

void GatheredUnits::drop(size_t index) {
  auto& whole = wholes_[index];
  finish(*units()[index], whole);
  if (!whole.is_used) {  // no operator has recorded its stream
    record_stream(whole.memory);
  }
  units()[index]->set_memory({});
  whole.pin.reset();
  whole.memory.reset();
  whole.is_used = false;
}

void GatheredUnits::drop_all() {
  finish_comparison();
  for (const size_t index : std::exchange(gathered_, {})) {
    drop(index);
  }
}

/// Drops units that no operator uses now, the oldest ones first.
void GatheredUnits::make_room(size_t most) {
  for (auto index = gathered_.begin();
       !keeps_all_ && gathered_.size() > most && index != gathered_.end();) {
    if (wholes_[*index].pin.use_count() > 1) {
      ++index;
      continue;
    }
    drop(*index);
    index = gathered_.erase(index);
  }
}

at::Tensor GatheredUnits::copy_of(const Unit& unit) {
  const std::lock_guard lock(mutex_);
  const PlainTensors plain;
  start_comparison(unit, kCopy);
  finish_comparison();
  auto& whole = whole_of(unit);
  if (!whole.memory.defined()) {
    start(unit, whole);
  }
  finish(unit, whole);
  read_on_current_stream(whole);
  auto copy = whole.memory.clone();
  gathered_.erase(std::find(gathered_.begin(), gathered_.end(), unit.index()));
  drop(unit.index());
  return copy;
}

std::string GatheredUnits::text_without_memory(const Unit& unit) const {
  return "Expected a forward of the FullyShardedDataParallel, and an operator "
         "of LibTorch, to read the parameters " +
         unit.name() +
         ", because the operator gathers them from all ranks, but something "
         "else asked for their memory; call the wrapper (model->forward, "
         "model->call), save by ddp::Checkpoint, or read by a kernel of your "
         "own in the scope of a ddp::WholeParameters";
}

}  // namespace ddp::detail
