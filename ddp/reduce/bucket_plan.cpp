#include "ddp/reduce/bucket_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

struct Draft {
  std::vector<size_t> members;
  int64_t bytes = 0;
  size_t last_place = 0;
};

}  // namespace

int64_t default_bucket_cap(const std::string& backend, int ranks) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return backend == "gloo" ? std::clamp(ranks * kMiB / 2, 4 * kMiB, 25 * kMiB)
                           : 25 * kMiB;
}

BucketPlan plan_buckets(const std::vector<GradientSpec>& gradients,
                        const std::vector<size_t>& order,
                        const BucketCaps& caps) {
  using Key = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::map<Key, Draft> open;
  std::set<Key> closed;
  std::vector<Draft> drafts;
  for (size_t place = 0; place < order.size(); ++place) {
    const auto& gradient = gradients[order[place]];
    if (gradient.alone) {
      drafts.push_back({{order[place]}, 0, place});
      continue;
    }
    const Key key{
        gradient.dtype, gradient.device.type(), gradient.device.index()};
    Draft& draft = open[key];
    draft.members.push_back(order[place]);
    draft.bytes +=
        gradient.numel * static_cast<int64_t>(c10::elementSize(gradient.dtype));
    draft.last_place = place;
    if (draft.bytes >= (closed.count(key) > 0 ? caps.later : caps.first)) {
      drafts.push_back(std::move(draft));
      open.erase(key);
      closed.insert(key);
    }
  }
  for (auto& [key, draft] : open) {
    drafts.push_back(std::move(draft));
  }
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    return a.last_place < b.last_place;
  });
  BucketPlan plan;
  plan.reserve(drafts.size());
  for (auto& draft : drafts) {
    plan.push_back(std::move(draft.members));
  }
  return plan;
}

std::vector<int64_t> to_numbers(const BucketPlan& plan) {
  std::vector<int64_t> numbers;
  for (const auto& bucket : plan) {
    for (const size_t index : bucket) {
      numbers.push_back(2 * static_cast<int64_t>(index));
    }
    numbers.back() += 1;
  }
  return numbers;
}

BucketPlan plan_of(c10::ArrayRef<int64_t> numbers, size_t count) {
  BucketPlan plan;
  std::vector<bool> has_come(count);
  bool begins = true;
  for (const int64_t number : numbers) {
    const auto index = static_cast<size_t>(number / 2);
    TORCH_CHECK(number >= 0 && index < count && !has_come[index],
                "Expected a bucket plan with each of ",
                count,
                " gradients at most once, but got the index ",
                number / 2,
                number >= 0 && index < count ? " twice" : "");
    has_come[index] = true;
    if (begins) {
      plan.emplace_back();
    }
    plan.back().push_back(index);
    begins = number % 2 == 1;
  }
  TORCH_CHECK(begins,
              "Expected a bucket plan whose last bucket ends, but got one of ",
              numbers.size(),
              " gradients that goes on");
  return plan;
}

}  // namespace ddp::detail
