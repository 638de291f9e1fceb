#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

namespace ddp {

/// Options of `AutocastGuard`; the defaults equal Python's torch.autocast.
struct AutocastOptions {
  /// torch::kHalf or torch::kBFloat16. std::nullopt: the dtype of the enclosing
  /// guard of this device type, or the default of the device type (CUDA kHalf,
  /// CPU kBFloat16).
  TORCH_ARG(std::optional<c10::ScalarType>, dtype) = std::nullopt;
  /// False disables autocast inside an outer guard that enables it: operators
  /// then compute in the dtypes of their tensors. Convert narrow results of the
  /// outer region by hand.
  TORCH_ARG(bool, enabled) = true;
  /// Whether the narrow copy of a float parameter that requires a gradient is
  /// kept until the outermost guard is destroyed, so that a forward that uses
  /// it twice converts it once. std::nullopt: as in the enclosing guard; true
  /// if there is none. Only copies of parameters are kept, not of results
  /// computed from them: torch::nn::Linear transposes its weight and converts
  /// the result in each forward, torch::linear(x, weight, bias) keeps a copy. A
  /// kept copy has the dtype of the guard that made it. A guard of another
  /// dtype gets the same copy, also on another thread, unless it has
  /// cache_enabled(false).
  TORCH_ARG(std::optional<bool>, cache_enabled) = std::nullopt;
};

/// Enables autocast for operators on tensors of one device type during its
/// lifetime: products and convolutions compute in the narrow dtype, losses in
/// float, and on CUDA also sums, norms and softmax, which on the CPU keep the
/// dtype of their input. Parameters and their gradients stay float, so the
/// network, its optimizer, its checkpoints and `DistributedDataParallel` need
/// no change. Corresponds to Python's torch.autocast, with LibTorch's own lists
/// of operators.
///
/// Put the forward and the loss inside. The backward pass does not need the
/// guard: each operator's backward computes in the dtype of its forward; only
/// the backward of a torch::autograd::Function of the program computes without
/// autocast outside. Put the optimizer's step outside: a kept narrow copy of a
/// parameter (`AutocastOptions::cache_enabled`) would not see the step. With
/// kHalf use a `GradScaler`, because small gradients become zero otherwise.
///
/// Guards nest, also for different device types and dtypes. Each guard restores
/// the previous state, and the outermost one drops the narrow copies.
///
/// Thread contract: the state of autocast, the dtype, the nesting and the
/// setting for copies belong to the thread, as with NoGradGuard. A thread that
/// is started inside does not inherit them and needs a guard of its own.
/// `dp::DataParallel` passes all but the nesting to its replicas; autograd
/// passes the state and the dtype of the thread that calls `backward()` to its
/// threads. The copies themselves belong to the process and are protected by a
/// lock; if one thread drops them, the others make new ones. Destroy a guard on
/// the thread that created it, in reverse order of creation.
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
  /// @param device_type  of the tensors: torch::kCUDA, torch::kCPU or another
  ///   type with autocast in LibTorch; `device.type()` of a device.
  /// @throws c10::Error for a device type without autocast, or a dtype that is
  ///   neither kHalf nor kBFloat16 (unless `enabled` is false).
  explicit AutocastGuard(c10::DeviceType device_type,
                         const AutocastOptions& options = {});
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_type_;
  // Previous state, which the destructor restores.
  c10::ScalarType dtype_;
  bool enabled_;
  bool cache_enabled_;
};

}  // namespace ddp
