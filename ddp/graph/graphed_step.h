#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace ddp {

/// Options of `GraphedStep`.
struct GraphedStepOptions {
  /// Number of eager steps before the recording, at least 2. The first ones
  /// allocate the states of the optimizer and plan the buckets.
  TORCH_ARG(int, warmup) = 3;
};

/// Makes training steps by launching one CUDA graph: zero_grad, forward, loss,
/// backward with its all-reduces over NCCL, and the step of a fused optimizer.
/// The host launches one graph instead of hundreds of kernels, which is faster
/// where the GPU waits for the host: small networks, small batches. Corresponds
/// to `torch.cuda.make_graphed_callables`, for a whole step.
///
/// Each call is one training step. The first `warmup` calls run eagerly. The
/// next call with inputs of the same shapes records the step and launches it.
/// Later calls copy their inputs into the memory of the recorded ones and
/// launch again. Inputs may be on the CPU, best in pinned memory: the host
/// waits for the earlier steps before it copies other memory.
///
/// These calls run eagerly, also on one rank alone while others launch: calls
/// with inputs of other shapes or dtypes (the last batch), in a `Join`, and
/// under a `NoSyncGuard`.
///
/// The learning rates are read from the optimizer's options at each call. A
/// launched step uses them as float32, so it equals an eager step bit for bit
/// with rates that are exact as float32 (0.0009765625), and up to rounding with
/// other rates. A change of another option, such as weight decay or momentum,
/// starts with the warm-up again.
///
/// The loss function, and `forward` in it, run in eager calls and in the
/// recording. A launch repeats the GPU's work alone: no branch, print or
/// counter of the host. It reads the tensors of the recording, so a tensor that
/// the program replaces between steps has to be an input.
///
/// If a step cannot be recorded, one warning and `refusal()` give the reason,
/// and all steps are eager until `reset()`. Reasons: a model on the CPU, Gloo,
/// find_unused_parameters, a buffer_hook, exchanges other than `AllReduce`, a
/// `CastExchange` around it or `NoExchange`, a `SyncBatchNorm` that trains, a
/// parameter that trains without the optimizer, a loss function that reads a
/// value on the host (`item()`), a random generator of the program,
/// TORCH_NCCL_BLOCKING_WAIT. If a host read is in the backward pass, the step
/// throws instead, and the ranks have to start again. There is no gradient
/// scaler and no clipping of gradients: compute in bfloat16.
///
/// Errors: a launched step throws c10::Error, as `backward()` does, if a rank
/// has left. After a change of the memory of a parameter, a buffer or a state
/// of the optimizer (torch::load, a `Checkpoint`), of requires_grad, of the
/// training mode or of the group, the next call throws c10::Error until
/// `reset()`.
///
/// While a recording lives, a pass overwrites the gradients of the pass before
/// even if the program holds them, as with gradient_as_bucket_view.
///
/// Costs the memory of one step, which other tensors cannot use, and of a copy
/// of the inputs.
///
/// Thread contract: the model's; see `DistributedDataParallel`. Other threads
/// may use CUDA meanwhile. Launches run on the caller's stream, eager steps on
/// a stream of this object, in order with it.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(net);
///   ddp::FusedAdamW optimizer(model->parameters(),
///                             torch::optim::AdamWOptions(0.0009765625));
///   ddp::GraphedStep step(
///       model, optimizer, [&](const std::vector<torch::Tensor>& in) {
///         return torch::nll_loss(model(in[0]), in[1]);
///       });
///   for (const auto& batch : *loader) {
///     auto loss = step({batch.data, batch.target});
///   }
/// @endcode
class GraphedStep {
 public:
  using Tensors = std::vector<at::Tensor>;
  using LossFunction = std::function<at::Tensor(const Tensors&)>;

  /// @param model  the `DistributedDataParallel`, or a module without one.
  /// @param optimizer  a `FusedSGD`, `FusedAdam` or `FusedAdamW` of the model's
  ///   parameters; must outlive this object.
  /// @param loss  makes the forward and returns the loss, one number. The
  ///   inputs that it gets are on the model's device.
  /// @throws c10::Error for another optimizer, an empty function, a model that
  ///   has no parameters or has them on several devices, or fewer than two
  ///   steps of warm-up.
  GraphedStep(std::shared_ptr<torch::nn::Module> model,
              torch::optim::Optimizer& optimizer,
              LossFunction loss,
              const GraphedStepOptions& options = {});
  /// As above, for a module holder.
  template <typename Holder, typename = typename Holder::ContainedType>
  GraphedStep(const Holder& model,
              torch::optim::Optimizer& optimizer,
              LossFunction loss,
              const GraphedStepOptions& options = {})
      : GraphedStep(std::shared_ptr<torch::nn::Module>(model.ptr()),
                    optimizer,
                    std::move(loss),
                    options) {}
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// Makes one training step.
  /// @returns the loss on the model's device, without a graph. The next call
  ///   may overwrite it.
  /// @throws c10::Error; see above.
  at::Tensor operator()(const Tensors& inputs);

  /// Whether the step has been recorded.
  bool is_recorded() const;
  /// The reason why the step could not be recorded, or "".
  const std::string& refusal() const;
  /// Drops the recording. The next calls warm up and record again.
  void reset();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
