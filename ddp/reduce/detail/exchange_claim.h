#pragma once

#include <memory>
#include <utility>

#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Claims an exchange for one reducer.
class ExchangeClaim {
 public:
  /// @throws c10::Error if another claim holds it.
  explicit ExchangeClaim(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {
    TORCH_CHECK(!exchange_->is_claimed_.exchange(true),
                "Expected an exchange of its own for each model, because it "
                "keeps state between steps, but got one that another model or "
                "Reducer holds; make one for each");
  }
  ~ExchangeClaim() { exchange_->is_claimed_ = false; }
  ExchangeClaim(const ExchangeClaim&) = delete;
  ExchangeClaim& operator=(const ExchangeClaim&) = delete;

  Exchange* operator->() const { return exchange_.get(); }
  Exchange& operator*() const { return *exchange_; }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace ddp::detail
