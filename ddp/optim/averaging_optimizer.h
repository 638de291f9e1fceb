#pragma once

#include <memory>

#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// Base of every `PostLocalSGDOptimizer`: gives the units that handle any
/// optimizer access to its averager.
class AveragingOptimizer {
 public:
  explicit AveragingOptimizer(std::shared_ptr<ModelAverager> averager);
  virtual ~AveragingOptimizer() = default;

  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }

 private:
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp::detail
