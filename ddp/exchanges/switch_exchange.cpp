#include "ddp/exchanges/switch_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp {
namespace {

constexpr const char* kPasses = "passes_left";
constexpr const char* kFirst = "first.";
constexpr const char* kLater = "later.";

/// Returns the entries whose names start with `prefix`, without the prefix.
c10::IValue part_of_state(const detail::DictReader& state,
                          const std::string& prefix) {
  auto part = detail::new_dict().toGenericDict();
  for (const auto& item : state.entries()) {
    if (item.key().isString() &&
        item.key().toStringRef().rfind(prefix, 0) == 0) {
      part.insert(item.key().toStringRef().substr(prefix.size()), item.value());
    }
  }
  return part;
}

}  // namespace

SwitchExchange::SwitchExchange(std::shared_ptr<Exchange> first,
                               int64_t passes,
                               std::shared_ptr<Exchange> later)
    : first_(std::move(first)), later_(std::move(later)), passes_(passes) {
  TORCH_CHECK(first_ && later_,
              "Expected two exchanges to switch between, but got ",
              first_ || later_ ? "one" : "none");
  TORCH_CHECK(passes >= 0,
              "Expected a number of passes for the first exchange that is not "
              "negative, but got ",
              passes);
}

double SwitchExchange::scale(int ranks) const {
  return current().scale(ranks);
}

int64_t SwitchExchange::multiple_of(int ranks) const {
  return std::lcm(first_->multiple_of(ranks), later_->multiple_of(ranks));
}

int SwitchExchange::min_group_size() const {
  const int first = first_->min_group_size();
  const int later = later_->min_group_size();
  return first == 0 || later == 0 ? first + later : std::min(first, later);
}

std::string SwitchExchange::refuses_sparse() const {
  const auto refusal = first_->refuses_sparse();
  return refusal.empty() ? later_->refuses_sparse() : refusal;
}

void SwitchExchange::start(const GradientBucket& bucket) {
  current().start(bucket);
}

void SwitchExchange::finish(const GradientBucket& bucket) {
  current().finish(bucket);
  if (bucket.is_last() && passes_ > 0) {
    --passes_;
  }
}

void SwitchExchange::abandon() noexcept {
  first_->abandon();
  later_->abandon();
}

c10::IValue SwitchExchange::state_dict() const {
  auto state = detail::new_dict().toGenericDict();
  state.insert(kPasses, at::scalar_tensor(passes_, at::kLong));
  for (const auto& [prefix, exchange] :
       {std::pair{kFirst, &first_}, std::pair{kLater, &later_}}) {
    for (const auto& item : (*exchange)->state_dict().toGenericDict()) {
      state.insert(prefix + item.key().toStringRef(), item.value());
    }
  }
  return state;
}

void SwitchExchange::check_state_dict(const c10::IValue& state) const {
  const detail::DictReader saved(state, "exchange");
  TORCH_CHECK(saved.has(kPasses) && saved.get(kPasses).isTensor() &&
                  saved.tensor(kPasses).numel() == 1,
              "Expected the passes left in the state of a SwitchExchange, but "
              "they are not there");
  first_->check_state_dict(part_of_state(saved, kFirst));
  later_->check_state_dict(part_of_state(saved, kLater));
}

void SwitchExchange::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  const detail::DictReader saved(state, "exchange");
  first_->load_state_dict(part_of_state(saved, kFirst));
  later_->load_state_dict(part_of_state(saved, kLater));
  passes_ = saved.tensor(kPasses).item<int64_t>();
}

}  // namespace ddp
