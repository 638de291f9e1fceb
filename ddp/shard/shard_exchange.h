#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/exchanges/bucket_consumer.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/shard/memory_pool.h"
#include "ddp/shard/sharded_units.h"

namespace ddp::detail {

/// Dtypes of a sharded model; std::nullopt: the parameters' own.
struct ShardDtypes {
  std::optional<c10::ScalarType> parameters;  ///< in a gathered unit
  std::optional<c10::ScalarType> sums;        ///< of gradients
};

/// Gives each rank the mean of the gradients of its slabs, as the gradients of
/// its leaves.
class ShardExchange : public SharedMemoryAllReduce, public BucketConsumer {
 public:
  /// Makes the units of these parameters: `HostUnits` if the ranks share
  /// memory, else `GatheredUnits`. Collective.
  /// @param cap_mb  of a unit, in MiB; std::nullopt: `default_unit_cap`.
  /// @param keeps_all  see `GatheredUnits`.
  /// @param dtypes  if set, the units are gathered in any case.
  ShardExchange(const c10::intrusive_ptr<c10d::Backend>& group,
                const std::vector<NamedParameter>& parameters,
                std::optional<double> cap_mb,
                bool keeps_all,
                const ShardDtypes& dtypes);

  const std::shared_ptr<ShardedUnits>& units() const { return units_; }

  at::Tensor allocate(int64_t numel, const at::TensorOptions& options) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

  std::vector<PrescribedBucket> prescribe_buckets(
      c10::ArrayRef<NamedParameter> parameters) override;
  void check_gradient(size_t parameter) const override;
  void begin_pass() override;
  void keep_local(size_t parameter) override;
  void sum_marks(const at::Tensor& marks) override;
  void assign_except(const std::vector<size_t>& kept) override;

 protected:
  c10::intrusive_ptr<c10d::Work> start_sum(const at::Tensor& payload) override;

 private:
  struct Bucket {
    Unit* unit;
    std::vector<size_t> parameters;  // the reducer's indices
  };
  /// A sum in progress without shared memory.
  struct Sum {
    at::Tensor sent;
    /// Over NCCL the sum of this rank's slab, over Gloo all ranks' gradients of
    /// this slab.
    at::Tensor received;
  };

  bool shares_memory() const;
  at::Tensor make_piece();

  const ShardDtypes dtypes_;
  std::shared_ptr<ShardedUnits> units_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<Unit*, size_t>> places_;  // by the reducer's indices
  std::deque<Sum> sums_;
  at::Tensor marks_;           // in shared memory
  int64_t payload_bytes_ = 0;  // of the largest unit
  MemoryPool pool_;            // for payloads on the CPU
};

}  // namespace ddp::detail
