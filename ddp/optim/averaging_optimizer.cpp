#include "ddp/optim/averaging_optimizer.h"

#include <utility>

#include <c10/util/Exception.h>

namespace ddp::detail {

AveragingOptimizer::AveragingOptimizer(std::shared_ptr<ModelAverager> averager)
    : averager_(std::move(averager)) {
  TORCH_CHECK(averager_ != nullptr,
              "Expected an averager for PostLocalSGDOptimizer, but got none");
}

}  // namespace ddp::detail
