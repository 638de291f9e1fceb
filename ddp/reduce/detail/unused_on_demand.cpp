#include "ddp/reduce/detail/unused_on_demand.h"

#include <utility>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

class SettleTwice : public MissingPolicy {
 public:
  SettleTwice(const Group& group, const GradientBuckets& buckets)
      : tells_(group->getRank() == 0),
        strict_(refuse_missing(group, buckets)),
        lenient_(allow_unused(group, buckets)) {}

  bool expects_all() const override { return true; }
  std::string late_error() override { return strict_->late_error(); }
  void note(const PassAccount& mine) override { strict_->note(mine); }
  void start() override { strict_->start(); }
  void abandon() noexcept override { strict_->abandon(); }

  /// An error that is not final is a missing gradient, and all ranks have it.
  Settlement settle(const PassAccount& mine) override {
    auto settlement = strict_->settle(mine);
    if (settlement.error.empty() || settlement.is_final) {
      return settlement;
    }
    if (std::exchange(tells_, false)) {
      TORCH_WARN(settlement.error,
                 ". find_unused_on_demand(true) took them as unused, as it "
                 "will in later passes, of which nothing is said");
    }
    return lenient_->settle(mine);
  }

 private:
  bool tells_;
  std::unique_ptr<MissingPolicy> strict_;
  std::unique_ptr<MissingPolicy> lenient_;
};

class SettleByMap : public MissingPolicy {
 public:
  SettleByMap(const Group& group, const GradientBuckets& buckets)
      : rank_(group->getRank()),
        buckets_(buckets),
        map_(allow_unused(group, buckets)) {}

  bool expects_all() const override { return true; }
  std::string late_error() override { return map_->late_error(); }
  void note(const PassAccount& mine) override { map_->note(mine); }
  void start() override { map_->start(); }
  void abandon() noexcept override { map_->abandon(); }

  Settlement settle(const PassAccount& mine) override {
    if (tells_ && !mine.missing.empty() && !mine.is_shadow) {
      tells_ = false;
      TORCH_WARN(
          "Rank ",
          rank_,
          " got no gradient for ",
          names_of(buckets_, mine.missing),
          " in a backward pass, which find_unused_on_demand(true) allows "
          "in this one and in all later ones");
    }
    return map_->settle(mine);
  }

 private:
  int rank_;
  bool tells_ = true;
  const GradientBuckets& buckets_;
  std::unique_ptr<MissingPolicy> map_;
};

}  // namespace

std::unique_ptr<MissingPolicy> find_unused_on_demand(
    Group group, const GradientBuckets& buckets) {
  if (buckets.spare().is_cpu()) {
    return std::make_unique<SettleTwice>(group, buckets);
  }
  return std::make_unique<SettleByMap>(group, buckets);
}

}  // namespace ddp::detail
