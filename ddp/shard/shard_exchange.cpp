#include "ddp/shard/shard_exchange.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include "ddp/job/wait.h"
#include "ddp/shard/gathered_units.h"
#include "ddp/shard/host_units.h"
#include "ddp/shared_memory/shared_sums.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

int64_t cap_bytes_of(const std::vector<NamedParameter>& parameters,
                     std::optional<double> cap_mb) {
  if (cap_mb) {
    return static_cast<int64_t>(*cap_mb * 1024 * 1024);
  }
  int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  return default_unit_cap(bytes);
}

}  // namespace

ShardExchange::ShardExchange(const c10::intrusive_ptr<c10d::Backend>& group,
                             const std::vector<NamedParameter>& parameters,
                             std::optional<double> cap_mb,
                             bool keeps_all,
                             const ShardDtypes& dtypes)
    : SharedMemoryAllReduce(group),
      dtypes_(dtypes),
      pool_([this] { return make_piece(); }) {
  TORCH_CHECK(
      group->getBackendName() != "mpi",
      "Expected a group over NCCL or Gloo for a "
      "FullyShardedDataParallel, but got one of ddp::mpi_group; use the "
      "group of ddp::init_process_group with "
      "ProcessGroupOptions::guest");
  const int64_t cap = cap_bytes_of(parameters, cap_mb);
  if (shares_memory()) {
    units_ =
        std::make_shared<HostUnits>(parameters, group, sums()->memory(), cap);
  } else {
    units_ = std::make_shared<GatheredUnits>(
        parameters, group, cap, keeps_all, dtypes.parameters);
  }
}

/// Shared slabs have one dtype.
bool ShardExchange::shares_memory() const {
  return sums() != nullptr && !dtypes_.parameters && !dtypes_.sums;
}

/// The last units' gradients come first.
std::vector<PrescribedBucket> ShardExchange::prescribe_buckets(
    c10::ArrayRef<NamedParameter> parameters) {
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_of.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  }
  std::vector<PrescribedBucket> prescribed;
  places_.resize(parameters.size());
  const auto& units = units_->units();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const auto& plan = (*unit)->plan();
    if (!plan.trains) {
      continue;
    }
    PrescribedBucket bucket{{}, plan.offsets, (*unit)->numel()};
    for (const auto& parameter : (*unit)->parameters()) {
      const size_t index = index_of.at(parameter.tensor.unsafeGetTensorImpl());
      places_[index] = {unit->get(), bucket.parameters.size()};
      bucket.parameters.push_back(index);
    }
    buckets_.push_back({unit->get(), bucket.parameters});
    payload_bytes_ =
        std::max({payload_bytes_,
                  (*unit)->bytes(),
                  (*unit)->numel() * static_cast<int64_t>(c10::elementSize(
                                         dtypes_.sums.value_or(at::kByte)))});
    prescribed.push_back(std::move(bucket));
  }
  return prescribed;
}

at::Tensor ShardExchange::allocate(int64_t numel,
                                   const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return at::empty({numel}, options);
  }
  return pool_.take(numel, options);
}

at::Tensor ShardExchange::make_piece() {
  const at::TensorOptions bytes(at::kByte);
  return shares_memory()
             ? SharedMemoryAllReduce::allocate(payload_bytes_, bytes)
             : at::empty({payload_bytes_}, bytes);
}

c10::intrusive_ptr<c10d::Work> ShardExchange::start_sum(
    const at::Tensor& payload) {
  if (shares_memory()) {
    return start_shared_sum(payload, /*is_scattered=*/true);
  }
  Sum sum;
  sum.sent = dtypes_.sums && payload.is_floating_point()
                 ? payload.to(*dtypes_.sums)
                 : payload;
  const auto options = sum.sent.options();
  c10::intrusive_ptr<c10d::Work> work;
  if (payload.is_cpu()) {  // Gloo's reduce-scatter sends twice the bytes
    sum.received = allocate(payload.numel(), options);
    auto received = sum.received.view(at::kByte);
    auto sent = sum.sent.view(at::kByte);  // Gloo does not know all dtypes
    std::vector<int64_t> equal;
    work = group().alltoall_base(received, sent, equal, equal, {});
  } else {
    sum.received = at::empty({payload.numel() / group().getSize()}, options);
    work = group()._reduce_scatter_base(sum.received, sum.sent, {});
  }
  sums_.push_back(std::move(sum));
  return work;
}

void ShardExchange::finish(const GradientBucket& bucket) {
  AllReduce::finish(bucket);
  auto& unit = *buckets_[bucket.index].unit;
  const int64_t slab = unit.plan().slab;
  at::Tensor gradients = unit.new_gradients();
  if (shares_memory()) {
    gradients.copy_(bucket.payload.narrow(0, slab * group().getRank(), slab));
    return;
  }
  const auto [sent, received] = std::move(sums_.front());
  sums_.pop_front();
  const auto parts = received.split(slab);
  if (parts.size() == 1) {
    gradients.copy_(received);
  } else {
    auto sum = parts.front();
    for (size_t rank = 1; rank + 1 < parts.size(); ++rank) {
      sum.add_(parts[rank]);  // in the order of the ranks
    }
    at::add_out(gradients, sum, parts.back());
  }
  record_stream(sent);
  record_stream(received);
}

void ShardExchange::abandon() noexcept {
  SharedMemoryAllReduce::abandon();
  sums_.clear();
}

void ShardExchange::check_gradient(size_t parameter) const {
  const auto [unit, index] = places_[parameter];
  unit->check_gradient(index);
}

void ShardExchange::begin_pass() {
  units_->begin_pass();
}

void ShardExchange::keep_local(size_t parameter) {
  const auto [unit, index] = places_[parameter];
  unit->keep_local(index);
}

void ShardExchange::sum_marks(const at::Tensor& marks) {
  if (!shares_memory()) {
    detail::wait(
        AllReduce::start_sum(marks), group(), "sum of the ranks' marks");
    return;
  }
  if (!marks_.defined()) {
    marks_ = SharedMemoryAllReduce::allocate(marks.numel(), marks.options());
  }
  marks_.copy_(marks);
  detail::wait(start_shared_sum(marks_, /*is_scattered=*/false),
               group(),
               "sum of the ranks' marks");
  marks.copy_(marks_);
}

void ShardExchange::assign_except(const std::vector<size_t>& kept) {
  for (const auto& [unit, parameters] : buckets_) {
    std::vector<bool> is_kept;
    for (const size_t index : parameters) {
      is_kept.push_back(std::binary_search(kept.begin(), kept.end(), index));
    }
    unit->add_gradients(is_kept);
  }
  units_->begin_writing();
}

}  // namespace ddp::detail
