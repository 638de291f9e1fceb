#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

namespace ddp {

/// Options of `AutocastGuard`; the defaults are those of Python's
/// torch.autocast.
struct AutocastOptions {
  /// torch::kHalf or torch::kBFloat16. Unset: what the device type has by
  /// default (CUDA kHalf, CPU kBFloat16), or what the guard around this one
  /// gave it.
  TORCH_ARG(std::optional<c10::ScalarType>, dtype) = std::nullopt;
  /// False: a region that computes in its tensors' own dtypes, inside one that
  /// does not. What the outer one has made narrow is to be converted by hand.
  TORCH_ARG(bool, enabled) = true;
  /// Keep the narrow copy of a parameter until the outermost guard goes, so
  /// that a forward that uses it twice converts it once. Unset: as outside.
  /// Of what is computed from a parameter no copy is kept: torch::nn::Linear
  /// transposes its weight and converts that in each forward, torch::linear(x,
  /// weight, bias) keeps one.
  TORCH_ARG(std::optional<bool>, cache_enabled) = std::nullopt;
};

/// While it lives, operators on tensors of one device type choose their dtype:
/// products and convolutions compute in the narrow one, what needs its range
/// (losses, sums, norms) in float. Parameters stay float, and so do their
/// gradients: the network needs no change, nor do its optimizer, its
/// checkpoints or `DistributedDataParallel`. Python's torch.autocast, with
/// LibTorch's own lists of operators.
///
/// The forward and the loss belong inside. The backward pass does not need it:
/// each operator's backward computes in the dtype that its forward had. The
/// optimizer's step belongs outside: a narrow copy of a parameter that is kept
/// (`AutocastOptions::cache_enabled`) would not notice it. With kHalf use a
/// `GradScaler`, or small gradients become zero.
///
/// Guards nest, also for different device types and dtypes; each gives back
/// what it found, and the outermost one drops the narrow copies.
///
/// Thread contract: on or off, the dtype, the nesting and whether copies are
/// kept belong to the thread, as with NoGradGuard: a thread that is started
/// inside does not have them and needs a guard of its own. `dp::DataParallel`
/// carries them to its replicas, autograd to its threads. The copies themselves
/// are the process's, behind a lock; when one thread drops them the others make
/// new ones. A guard goes on the thread that made it, the last one first.
///
/// Example:
/// @code
///   torch::Tensor loss;
///   {
///     const ddp::AutocastGuard autocast(torch::kCUDA);
///     loss = torch::nll_loss(model->forward(data), target);
///   }
///   scaler.scale(loss).backward();
/// @endcode
///
/// Source: torch/amp/autocast_mode.py of PyTorch 2.11.
class AutocastGuard {
 public:
  /// @param device_type  whose operators choose: torch::kCUDA, torch::kCPU or
  ///   another one of LibTorch's autocast; `device.type()` of a device.
  /// @throws c10::Error for a device type without autocast, or a dtype that is
  ///   neither kHalf nor kBFloat16.
  explicit AutocastGuard(c10::DeviceType device_type,
                         const AutocastOptions& options = {});
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_type_;
  // What was before.
  c10::ScalarType dtype_;
  bool enabled_;
  bool cache_enabled_;
};

}  // namespace ddp
