#include "ddp/detail/reducer/missing_policy.h"

#include <optional>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/detail/reducer/failure_flag.h"
#include "ddp/detail/reducer/missing_gradients.h"
#include "ddp/detail/wait.h"

namespace ddp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

class RefuseMissing : public MissingPolicy {
 public:
  RefuseMissing(Group group, const GradientBuckets& buckets)
      : group_(std::move(group)), buckets_(buckets) {
    bind();
  }

  bool expects_all() const override { return true; }

  void bind() override { flag_.emplace(buckets_.spare()); }

  void note(const std::vector<size_t>& missing) override {
    if (!missing.empty()) {
      flag_->raise();
    }
  }

  void start() override {
    if (!buckets_.spare_rides()) {
      std::vector<at::Tensor> tensors{buckets_.spare()};
      work_ = group_->allreduce(tensors);
    }
  }

  std::vector<size_t> settle(const std::vector<size_t>& missing) override {
    if (const auto work = std::exchange(work_, nullptr)) {
      wait(work, *group_, "all-reduce of the failure flag");
    }
    if (flag_->raised() || !missing.empty()) {
      flag_->clear();
      report(missing);
    }
    return {};
  }

 private:
  [[noreturn]] void report(const std::vector<size_t>& missing) {
    std::string mine;
    for (const size_t index : missing) {
      mine += (mine.empty() ? "" : ", ") + buckets_.parameter(index).name;
    }
    TORCH_CHECK(false,
                missing_gradients_error(exchange_missing(
                    *group_, buckets_.spare().device(), mine)));
  }

  Group group_;
  const GradientBuckets& buckets_;
  std::optional<FailureFlag> flag_;
  c10::intrusive_ptr<c10d::Work> work_;  // of a spare element that rides not
};

class AllowUnused : public MissingPolicy {
 public:
  AllowUnused(Group group, const GradientBuckets& buckets)
      : group_(std::move(group)), buckets_(buckets) {}

  bool expects_all() const override { return false; }
  void bind() override {}
  void note(const std::vector<size_t>& /*missing*/) override {}
  void start() override {}

  /// Used is also what a pass has used that was not reduced before this one.
  std::vector<size_t> settle(const std::vector<size_t>& missing) override {
    std::vector<bool> used(buckets_.size(), true);
    for (const size_t index : missing) {
      used[index] = buckets_.has_accumulated(index) &&
                    buckets_.parameter(index).tensor.grad().defined();
    }
    used = all_reduce_used(*group_, buckets_.spare().device(), used);
    std::vector<size_t> unused;
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) {
        unused.push_back(i);
      }
    }
    return unused;
  }

 private:
  Group group_;
  const GradientBuckets& buckets_;
};

}  // namespace

std::unique_ptr<MissingPolicy> refuse_missing(Group group,
                                              const GradientBuckets& buckets) {
  return std::make_unique<RefuseMissing>(std::move(group), buckets);
}

std::unique_ptr<MissingPolicy> allow_unused(Group group,
                                            const GradientBuckets& buckets) {
  return std::make_unique<AllowUnused>(std::move(group), buckets);
}

}  // namespace ddp::detail
