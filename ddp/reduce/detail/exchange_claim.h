#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Claims an exchange and its inner exchanges for one reducer.
class ExchangeClaim {
 public:
  /// @throws c10::Error if another claim holds one of them.
  explicit ExchangeClaim(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {
    add(*exchange_);
    const auto taken =
        std::find_if(held_.begin(), held_.end(), [](Exchange* each) {
          return each->is_claimed_.exchange(true);
        });
    if (taken != held_.end()) {
      held_.erase(taken, held_.end());
      release();
      TORCH_CHECK(false,
                  "Expected an exchange of its own for each model, because it "
                  "keeps state between steps, but got one that another model "
                  "or Reducer holds; make one for each");
    }
  }
  ~ExchangeClaim() { release(); }
  ExchangeClaim(const ExchangeClaim&) = delete;
  ExchangeClaim& operator=(const ExchangeClaim&) = delete;

  Exchange* operator->() const { return exchange_.get(); }
  Exchange& operator*() const { return *exchange_; }

 private:
  /// Adds each exchange once: a SwitchExchange may contain one twice.
  void add(Exchange& exchange) {
    if (std::count(held_.begin(), held_.end(), &exchange) > 0) {
      return;
    }
    held_.push_back(&exchange);
    for (auto* inner : exchange.inner_exchanges()) {
      add(*inner);
    }
  }
  void release() {
    for (auto* exchange : held_) {
      exchange->is_claimed_ = false;
    }
  }

  std::shared_ptr<Exchange> exchange_;
  std::vector<Exchange*> held_;
};

}  // namespace ddp::detail
