#include "ddp/shard/shard_exchange.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "ddp/job/wait.h"
#include "ddp/shared_memory/shared_sums.h"

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
                             std::optional<double> cap_mb)
    : SharedMemoryAllReduce(group) {
  TORCH_CHECK(sums(),
              "rank ",
              group->getRank(),
              ": Expected ranks on CPUs of one host that share memory, because "
              "FullyShardedDataParallel keeps one copy of the parameters "
              "there, but got a group that cannot; leave out "
              "shared_memory(false) and DDP_SHARED_MEMORY=0, or use "
              "DistributedDataParallel");
  units_ = std::make_shared<HostUnits>(
      parameters, group, sums()->memory(), cap_bytes_of(parameters, cap_mb));
}

/// The last units' gradients come first.
std::vector<PrescribedBucket> ShardExchange::prescribe_buckets(
    c10::ArrayRef<NamedParameter> parameters) {
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_of.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  }
  std::vector<PrescribedBucket> prescribed;
  const auto& units = units_->units();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const auto& plan = (*unit)->plan();
    if (!plan.trains) {
      continue;
    }
    PrescribedBucket bucket{{}, plan.offsets, (*unit)->slabs().numel()};
    for (const auto& parameter : (*unit)->parameters()) {
      bucket.parameters.push_back(
          index_of.at(parameter.tensor.unsafeGetTensorImpl()));
    }
    buckets_.push_back({unit->get(), bucket.parameters});
    payload_bytes_ = std::max(payload_bytes_,
                              static_cast<int64_t>((*unit)->slabs().nbytes()));
    prescribed.push_back(std::move(bucket));
  }
  return prescribed;
}

at::Tensor ShardExchange::allocate(int64_t numel,
                                   const at::TensorOptions& options) {
  at::Tensor memory;
  if (free_->empty()) {
    memory = SharedMemoryAllReduce::allocate(payload_bytes_,
                                             at::TensorOptions(at::kByte));
  } else {
    memory = std::move(free_->back());
    free_->pop_back();
  }
  void* begin = memory.mutable_data_ptr();
  return at::from_blob(
      begin,
      {numel},
      [memory = std::move(memory), free = free_](void*) {
        free->push_back(memory);
      },
      options);
}

c10::intrusive_ptr<c10d::Work> ShardExchange::start_sum(
    const at::Tensor& payload) {
  return start_shared_sum(payload, /*is_scattered=*/true);
}

void ShardExchange::finish(const GradientBucket& bucket) {
  AllReduce::finish(bucket);
  auto& unit = *buckets_[bucket.index].unit;
  const int64_t slab = unit.plan().slab;
  unit.set_gradients(bucket.payload.narrow(0, slab * group().getRank(), slab));
}

void ShardExchange::sum_marks(const at::Tensor& marks) {
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
