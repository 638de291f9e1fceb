#include "ddp/reduce/detail/learn_unused.h"

#include <utility>

#include <ATen/ops/ones.h>

#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

PassAccount without_missing(const PassAccount& mine) {
  auto account = mine;
  account.missing.clear();
  return account;
}

class LearnUnused : public MissingPolicy {
 public:
  LearnUnused(Group group, const GradientBuckets& buckets)
      : strict_(refuse_missing(group, buckets)),
        group_(std::move(group)),
        buckets_(buckets) {}

  bool expects_all() const override { return true; }
  std::string late_error() override { return strict_->late_error(); }

  /// In the first pass, where a GPU may be waited for.
  std::vector<size_t> never_used(const PassAccount& mine) override {
    auto used = at::ones({static_cast<int64_t>(buckets_.size())}, at::kFloat);
    for (const size_t index : without_gradient(buckets_, mine)) {
      used.mutable_data_ptr<float>()[index] = 0;
    }
    std::vector<at::Tensor> sum{used.to(buckets_.spare().device())};
    wait(group_->allreduce(sum), *group_, "all-reduce of the used map");
    used = sum[0].cpu();
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (used.const_data_ptr<float>()[i] == 0) {
        unused_.push_back(i);
      }
    }
    return unused_;
  }

  void note(const PassAccount& mine) override {
    strict_->note(without_missing(mine));
  }

  void start() override { strict_->start(); }
  void abandon() noexcept override { strict_->abandon(); }

  Settlement settle(const PassAccount& mine) override {
    auto settlement = strict_->settle(without_missing(mine));
    settlement.unused = unused_;
    return settlement;
  }

 private:
  std::unique_ptr<MissingPolicy> strict_;
  Group group_;
  const GradientBuckets& buckets_;
  std::vector<size_t> unused_;  // since the first pass
};

}  // namespace

std::unique_ptr<MissingPolicy> learn_unused(Group group,
                                            const GradientBuckets& buckets) {
  return std::make_unique<LearnUnused>(std::move(group), buckets);
}

}  // namespace ddp::detail
