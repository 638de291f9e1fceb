#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::bench {

/// A chain of square Linear layers and the batch it is trained on.
struct Workload {
  int64_t layers;
  int64_t width;
  int64_t batch = 32;

  int64_t parameters() const { return 2 * layers; }
};

/// "mlp" (8 x Linear(1024), 34 MB of gradients) or "small" (500 x Linear(16),
/// 1,000 parameters). @throws c10::Error for another name.
Workload workload(const std::string& name);

/// One of the things compared: trains its own copy of the model.
class Arm {
 public:
  virtual ~Arm() = default;
  /// Forward, backward, the optimizer's step, zero_grad.
  virtual void step() = 0;
};

/// "plain" (no communication), "floor" (plain after an all-reduce of one
/// number), "ours", "ours_view" (gradient_as_bucket_view), "ours_fused" (with a
/// FusedSGD) and "c10d" (c10d::Reducer, driven as PyTorch's DDP drives it),
/// each with LibTorch's SGD but for the one named; "plain_momentum" and
/// "plain_adamw" with LibTorch's SGD with momentum and AdamW, "ours_momentum"
/// and "ours_adamw" with the fused ones; and those of feature_arms.h.
/// @throws c10::Error for another name.
std::unique_ptr<Arm> make_arm(const std::string& name,
                              const Workload& workload,
                              const c10::intrusive_ptr<c10d::Backend>& group);

}  // namespace ddp::bench
