#pragma once

#include <memory>

#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// Base of every `PostLocalSGDOptimizer`. Gives code that handles any optimizer
/// access to its averager.
class AveragingOptimizer {
 public:
  /// @throws c10::Error if `averager` is null.
  explicit AveragingOptimizer(std::shared_ptr<ModelAverager> averager);
  virtual ~AveragingOptimizer() = default;

  /// Returns the averager; never null.
  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }

 private:
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp::detail
