#include "ddp/detail/reducer/learn_unused.h"

#include <optional>

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
  LearnUnused(const Group& group, const GradientBuckets& buckets)
      : strict_(refuse_missing(group, buckets)),
        map_(allow_unused(group, buckets)) {}

  bool expects_all() const override { return true; }

  std::string late_error() override {
    const auto error = strict_->late_error();
    return error.empty() ? map_->late_error() : error;
  }

  void note(const PassAccount& mine) override {
    strict_->note(without_missing(mine));
  }

  void start() override { strict_->start(); }

  Settlement settle(const PassAccount& mine) override {
    auto settlement = strict_->settle(without_missing(mine));
    if (!settlement.error.empty()) {
      return settlement;
    }
    if (!unused_) {
      settlement = map_->settle(mine);
      unused_ = settlement.unused;
    }
    settlement.unused = *unused_;
    return settlement;
  }

 private:
  std::unique_ptr<MissingPolicy> strict_;
  std::unique_ptr<MissingPolicy> map_;
  std::optional<std::vector<size_t>> unused_;  // since the first pass
};

}  // namespace

std::unique_ptr<MissingPolicy> learn_unused(Group group,
                                            const GradientBuckets& buckets) {
  return std::make_unique<LearnUnused>(group, buckets);
}

}  // namespace ddp::detail
