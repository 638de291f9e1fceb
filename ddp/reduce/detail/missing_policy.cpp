#include "ddp/reduce/detail/missing_policy.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/reduce/detail/late_verdict.h"

namespace ddp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// What both policies share: the verdict and what follows from a bad one.
class Agreement : public MissingPolicy {
 public:
  std::string late_error() override { return verdict_.error(); }

 protected:
  Agreement(Group group,
            const GradientBuckets& buckets,
            const at::TensorOptions& elements)
      : group_(std::move(group)),
        buckets_(buckets),
        verdict_(*group_, elements) {}

  c10d::Backend& group() { return *group_; }
  const GradientBuckets& buckets() const { return buckets_; }
  Verdict& verdict() { return *verdict_; }

  /// The verdict of `mine` has been read.
  Settlement conclude(const PassAccount& mine, std::vector<size_t> unused) {
    const bool knows_all = buckets_.spare().is_cpu();
    if (knows_all ? verdict_->is_good() : !mine.has_failed()) {
      return {std::move(unused), "", false};
    }
    if (knows_all && verdict_->is_crossed()) {
      return {{}, crossed_error(), true};  // nor do the ranks' texts meet
    }
    const auto reports = knows_all ? all_reports(mine) : own_report(mine);
    const auto any_says = [&](std::string PassReport::*text) {
      return std::any_of(
          reports.begin(), reports.end(), [text](const PassReport& report) {
            return !(report.*text).empty();
          });
    };
    // A missing gradient alone parts no ranks that all know of it.
    const bool is_final = !knows_all || any_says(&PassReport::failure) ||
                          !any_says(&PassReport::missing);
    return {{}, pass_error(reports), is_final};
  }

 private:
  PassReport report_on(const PassAccount& mine) const {
    if (mine.is_shadow) {
      return {0, 0, "", "", mine.failure, "", ""};
    }
    return {mine.number,
            mine.without_step.value_or(0),
            names_of(buckets_, mine.missing),
            names_of(buckets_, mine.frozen),
            mine.failure,
            mine.changed,
            mine.late};
  }

  std::vector<PassReport> all_reports(const PassAccount& mine) {
    verdict_->forgive();
    std::vector<PassReport> reports;
    for (const auto& text : all_gather_text(
             *group_, buckets_.spare().device(), to_text(report_on(mine)))) {
      reports.push_back(report_of(text));
    }
    return reports;
  }

  /// All ranks of a GPU do not learn of it at once, so there they cannot ask
  /// each other.
  std::vector<PassReport> own_report(const PassAccount& mine) {
    verdict_.mark_told();
    std::vector<PassReport> reports(group_->getSize());
    reports[group_->getRank()] = report_on(mine);
    return reports;
  }

  Group group_;
  const GradientBuckets& buckets_;
  LateVerdict verdict_;
};

class RefuseMissing : public Agreement {
 public:
  RefuseMissing(Group group, const GradientBuckets& buckets)
      : Agreement(std::move(group), buckets, buckets.spare().options()) {}

  bool expects_all() const override { return true; }

  void note(const PassAccount& mine) override {
    buckets().join_spare();
    verdict().write(buckets().spare(), mine.stamp(), mine.has_failed());
  }

  void start() override {
    if (!buckets().spare_rides()) {
      std::vector<at::Tensor> tensors{buckets().spare()};
      work_ = group().allreduce(tensors);
    }
  }

  Settlement settle(const PassAccount& mine) override {
    if (const auto work = std::exchange(work_, nullptr)) {
      wait(work, group(), "all-reduce of the ranks' verdicts");
    }
    verdict().read(buckets().spare());
    return conclude(mine, {});
  }

  void abandon() noexcept override { work_.reset(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;  // of spare elements that ride not
};

/// The used map: one element a parameter, then the verdict.
class AllowUnused : public Agreement {
 public:
  AllowUnused(Group group, const GradientBuckets& buckets)
      : Agreement(std::move(group), buckets, elements_of(buckets)),
        size_(static_cast<int64_t>(buckets.size())),
        mine_(at::ones({size_ + Verdict::kNumel}, elements_of(buckets))),
        shared_(at::empty_like(mine_)) {}

  bool expects_all() const override { return false; }
  void note(const PassAccount& /*mine*/) override {}
  void start() override {}

  Settlement settle(const PassAccount& account) override {
    // A parameter without a gradient is no error here, only what differs
    // between ranks.
    PassAccount mine = account;
    mine.missing.clear();
    const bool all_used = account.missing.empty() && account.frozen.empty();
    write_used(account);
    shared_.copy_(mine_);
    verdict().write(verdict_of(shared_), mine.stamp(), mine.has_failed());
    std::vector<at::Tensor> tensors{shared_};
    wait(group().allreduce(tensors), group(), "all-reduce of the used map");
    verdict().read(verdict_of(shared_));
    return conclude(mine, all_used ? std::vector<size_t>{} : unused());
  }

 private:
  static at::TensorOptions elements_of(const GradientBuckets& buckets) {
    return at::TensorOptions(at::kFloat).device(buckets.spare().device());
  }

  at::Tensor verdict_of(const at::Tensor& map) const {
    return map.narrow(0, size_, Verdict::kNumel);
  }

  /// On a GPU the map is made anew only when it differs from the last pass's:
  /// that stalls the host.
  void write_used(const PassAccount& account) {
    auto without = without_gradient(buckets(), account);
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

  int64_t size_;
  std::vector<size_t> without_;  // zero in mine_
  at::Tensor mine_;
  at::Tensor shared_;
};

}  // namespace

std::vector<size_t> without_gradient(const GradientBuckets& buckets,
                                     const PassAccount& account) {
  std::vector<size_t> without;
  for (const auto* indices : {&account.missing, &account.frozen}) {
    for (const size_t index : *indices) {
      if (!buckets.has_accumulated(index) ||
          !buckets.parameter(index).tensor.grad().defined()) {
        without.push_back(index);
      }
    }
  }
  return without;
}

std::string names_of(const GradientBuckets& buckets,
                     const std::vector<size_t>& indices) {
  std::string names;
  for (const size_t index : indices) {
    names += (names.empty() ? "" : ", ") + buckets.parameter(index).name;
  }
  return names;
}

std::unique_ptr<MissingPolicy> refuse_missing(Group group,
                                              const GradientBuckets& buckets) {
  return std::make_unique<RefuseMissing>(std::move(group), buckets);
}

std::unique_ptr<MissingPolicy> allow_unused(Group group,
                                            const GradientBuckets& buckets) {
  return std::make_unique<AllowUnused>(std::move(group), buckets);
}

}  // namespace ddp::detail
