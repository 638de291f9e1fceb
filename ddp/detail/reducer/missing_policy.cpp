#include "ddp/detail/reducer/missing_policy.h"

#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/detail/reducer/late_verdict.h"
#include "ddp/detail/text_collectives.h"
#include "ddp/detail/wait.h"

namespace ddp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// What both policies share: the verdict and what follows from a bad one.
class Agreement {
 public:
  Agreement(Group group,
            const GradientBuckets& buckets,
            const at::Tensor& elements)
      : group_(std::move(group)),
        buckets_(buckets),
        verdict_(*group_, elements) {}

  Verdict& verdict() { return *verdict_; }

  /// All ranks of a GPU do not learn of it at once, so there they cannot ask
  /// each other.
  std::string late_error() { return verdict_.error(); }

  /// The verdict of `mine` has been read.
  Settlement settle(const PassAccount& mine, std::vector<size_t> unused) {
    const auto device = buckets_.spare().device();
    if (!device.is_cpu()) {
      if (mine.missing.empty()) {
        return {std::move(unused), "", false};
      }
      verdict_.mark_told();
      return {
          {}, missing_error(group_->getRank(), names_of(mine.missing)), true};
    }
    if (verdict_->is_good()) {
      return {std::move(unused), "", false};
    }
    verdict_->forgive();
    const PassReport report{mine.number,
                            mine.without_step,
                            names_of(mine.missing),
                            names_of(mine.frozen)};
    bool is_missing = false;
    std::vector<PassReport> reports;
    for (const auto& text : all_gather_text(*group_, device, to_text(report))) {
      reports.push_back(report_of(text));
      is_missing |= !reports.back().missing.empty();
    }
    return {{}, pass_error(reports), !is_missing};
  }

 private:
  std::string names_of(const std::vector<size_t>& indices) const {
    std::string names;
    for (const size_t index : indices) {
      names += (names.empty() ? "" : ", ") + buckets_.parameter(index).name;
    }
    return names;
  }

  Group group_;
  const GradientBuckets& buckets_;
  LateVerdict verdict_;
};

class RefuseMissing : public MissingPolicy {
 public:
  RefuseMissing(Group group, const GradientBuckets& buckets)
      : group_(group),
        buckets_(buckets),
        agreement_(group, buckets, buckets.spare()) {}

  bool expects_all() const override { return true; }

  std::string late_error() override { return agreement_.late_error(); }

  void note(const PassAccount& mine) override {
    agreement_.verdict().write(
        buckets_.spare(), mine.stamp(), !mine.missing.empty());
  }

  void start() override {
    if (!buckets_.spare_rides()) {
      std::vector<at::Tensor> tensors{buckets_.spare()};
      work_ = group_->allreduce(tensors);
    }
  }

  Settlement settle(const PassAccount& mine) override {
    if (const auto work = std::exchange(work_, nullptr)) {
      wait(work, *group_, "all-reduce of the ranks' verdicts");
    }
    agreement_.verdict().read(buckets_.spare());
    return agreement_.settle(mine, {});
  }

 private:
  Group group_;
  const GradientBuckets& buckets_;
  Agreement agreement_;
  c10::intrusive_ptr<c10d::Work> work_;  // of spare elements that ride not
};

/// The used map: one element a parameter, then the verdict.
class AllowUnused : public MissingPolicy {
 public:
  AllowUnused(Group group, const GradientBuckets& buckets)
      : group_(group),
        buckets_(buckets),
        size_(static_cast<int64_t>(buckets.size())),
        mine_(at::ones(
            {size_ + Verdict::kNumel},
            at::TensorOptions(at::kFloat).device(buckets.spare().device()))),
        shared_(at::empty_like(mine_)),
        agreement_(group, buckets, verdict_of(shared_)) {}

  bool expects_all() const override { return false; }
  std::string late_error() override { return agreement_.late_error(); }
  void note(const PassAccount& /*mine*/) override {}
  void start() override {}

  Settlement settle(const PassAccount& account) override {
    const bool all_used = account.missing.empty() && account.frozen.empty();
    write_used(account);
    shared_.copy_(mine_);
    agreement_.verdict().write(
        verdict_of(shared_), account.stamp(), /*failed=*/false);
    std::vector<at::Tensor> tensors{shared_};
    wait(group_->allreduce(tensors), *group_, "all-reduce of the used map");
    agreement_.verdict().read(verdict_of(shared_));
    // Nothing here is an error, only what differs between ranks.
    PassAccount mine = account;
    mine.missing.clear();
    return agreement_.settle(mine, all_used ? std::vector<size_t>{} : unused());
  }

 private:
  at::Tensor verdict_of(const at::Tensor& map) const {
    return map.narrow(0, size_, Verdict::kNumel);
  }

  /// On a GPU the map is made anew only when it differs from the last pass's:
  /// that stalls the host. Used is also what a pass has used that was not
  /// reduced before this one.
  void write_used(const PassAccount& account) {
    std::vector<size_t> without;
    for (const auto* indices : {&account.missing, &account.frozen}) {
      for (const size_t index : *indices) {
        if (!buckets_.has_accumulated(index) ||
            !buckets_.parameter(index).tensor.grad().defined()) {
          without.push_back(index);
        }
      }
    }
    if (without == without_) {
      return;
    }
    auto used = at::ones({size_}, at::kFloat);
    for (const size_t index : without) {
      used.mutable_data_ptr<float>()[index] = 0;
    }
    mine_.narrow(0, 0, size_).copy_(used);
    without_ = std::move(without);
  }

  std::vector<size_t> unused() const {
    const auto used = shared_.narrow(0, 0, size_).ne(0).cpu();
    std::vector<size_t> result;
    for (int64_t i = 0; i < size_; ++i) {
      if (!used.const_data_ptr<bool>()[i]) {
        result.push_back(static_cast<size_t>(i));
      }
    }
    return result;
  }

  Group group_;
  const GradientBuckets& buckets_;
  int64_t size_;
  std::vector<size_t> without_;  // zero in mine_
  at::Tensor mine_;
  at::Tensor shared_;
  Agreement agreement_;
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
