#pragma once

#include <memory>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// Base of every `PostLocalSGDOptimizer`. Gives code that handles any optimizer
/// access to its averager, and has the state of both.
class AveragingOptimizer : public Stateful {
 public:
  /// @throws c10::Error if `averager` is null.
  explicit AveragingOptimizer(std::shared_ptr<ModelAverager> averager);

  /// Returns the averager; never null.
  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }

  /// Returns the optimizer's state with the averager's entries added, as
  /// PyTorch's PostLocalSGDOptimizer.state_dict().
  c10::IValue state_dict() const override;
  void check_state_dict(const c10::IValue& state) const override;
  void load_state_dict(const c10::IValue& state) override;

 protected:
  /// Writes the averager's state into LibTorch's archive of the optimizer.
  void save_averager(torch::serialize::OutputArchive& archive) const;
  /// Reads it. Without it in the archive, warns and starts the averager at step
  /// 0.
  /// @throws c10::Error then if the averager has an outer optimizer.
  void load_averager(torch::serialize::InputArchive& archive);

 private:
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp::detail
