#pragma once

#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::bench {

/// A model, the size of its training batch, and where both lie.
struct Workload {
  enum class Model {
    chain,        ///< of square Linear layers
    resnet,       ///< ResNet-18 on images of 32 x 32 pixels
    transformer,  ///< layers of an encoder on sentences of 64 words
  };
  Model model = Model::chain;
  int64_t layers = 0;  ///< of a chain or a transformer
  int64_t width = 0;
  int64_t batch = 32;
  c10::Device device = c10::kCPU;
};

/// Returns the workload "mlp" (8 x Linear(1024), 34 MB of gradients), "mlp256"
/// (the same with a batch of 256), "wide" (8 x Linear(4096), 537 MB, batch
/// 4096), "small" (500 x Linear(16), 1,000 parameters), "resnet" (45 MB, with
/// buffers), "resnet8" (the same with a batch of 8) or "transformer" (6 layers,
/// 19 MB), on the CPU.
/// @throws c10::Error for another name.
Workload workload(const std::string& name);

/// A compared implementation, which trains its own copy of the model.
class Arm {
 public:
  virtual ~Arm() = default;
  /// Runs forward, backward, the optimizer's step and zero_grad.
  virtual void step() = 0;
};

/// Creates an arm by its name. With LibTorch's SGD: "plain" (no communication),
/// "floor" (plain after an all-reduce of one number), "ours", "ours_view"
/// (gradient_as_bucket_view), "all_reduce" and "all_reduce_view" (the same with
/// an AllReduce, which a rank without peers runs, too, and CPU ranks run over
/// Gloo), "cap1" and other numbers (ours, all buckets of that many
/// MiB) and "c10d" (c10d::Reducer, used as in PyTorch's DDP). With a FusedSGD:
/// "plain_fused", "ours_fused" and "all_reduce_fused"; on a GPU also
/// "all_reduce_recorded", by a GraphedStep.
/// With LibTorch's SGD with momentum and AdamW: "plain_momentum" and
/// "plain_adamw"; with the fused optimizers: "ours_momentum" and "ours_adamw".
/// "ours_libtorch_adamw" has LibTorch's AdamW; "sharded_adamw" and
/// "sharded_libtorch_adamw" are the same two with FullyShardedDataParallel.
/// "sharded_whole_adamw" is the first of these with
/// reshard_after_forward(false). Further arms: see feature_arms.h.
/// @throws c10::Error for another name.
std::unique_ptr<Arm> make_arm(const std::string& name,
                              const Workload& workload,
                              const c10::intrusive_ptr<c10d::Backend>& group);

}  // namespace ddp::bench
