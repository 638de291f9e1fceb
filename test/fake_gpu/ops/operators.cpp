// Operators on CUDA tensors that run LibTorch's CPU code. All others keep their
// CUDA code, and the stand-in decodes their kernels, among them fill_, zero_,
// copy_, mul_ and _foreach_copy_, which the reducer uses to move data.
#include <ATen/ATen.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "test/fake_gpu/ops/batch_norm.h"
#include "test/fake_gpu/ops/deferred.h"
#include "test/fake_gpu/ops/freed_memory.h"
#include "test/fake_gpu/ops/lstm_cell.h"

namespace fake_gpu {
namespace {

// clang-format off
constexpr const char* kOperators[] = {
    // Element by element
    "abs", "add.Scalar", "add.Tensor", "add_.Scalar", "add_.Tensor",
    "addcdiv", "addcdiv_", "addcmul", "addcmul_", "bitwise_and.Tensor",
    "bitwise_not", "bitwise_or.Tensor", "clamp", "clamp_min", "clamp_min_", "div.Scalar",
    "div.Tensor", "div.Tensor_mode", "div_.Scalar", "div_.Tensor", "eq.Scalar",
    "eq.Tensor", "exp", "ge.Scalar", "ge.Tensor", "gt.Scalar", "gt.Tensor",
    "isfinite", "le.Scalar", "le.Tensor", "lerp.Scalar", "lerp_.Scalar", "log",
    "logical_and", "logical_not", "logical_or_", "lt.Scalar", "lt.Tensor", "masked_fill.Scalar",
    "masked_fill_.Scalar", "maximum", "minimum", "mul.Scalar", "mul.Tensor",
    "nan_to_num_", "ne.Scalar", "ne.Tensor", "neg", "neg_", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "reciprocal", "round_", "rsub.Scalar", "rsub.Tensor", "sgn",
    "sign", "sqrt", "sqrt_", "sub.Tensor", "sub_.Tensor", "where.self",
    "_foreach_add_.List", "_foreach_add_.Scalar", "_foreach_div_.Scalar",
    "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_",
    "_foreach_mul_.List", "_foreach_mul_.Scalar", "_fused_adam_",
    "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr",
    "_fused_sgd_", "_fused_sgd_.tensor_lr",
    // Reductions and comparisons
    "all", "all.dim", "amax", "any", "any.dim", "argmax", "equal", "isclose",
    "linalg_vector_norm", "max", "mean", "mean.dim", "min",
    "norm.ScalarOpt_dim", "prod", "sum", "sum.dim_IntList",
    // Products
    "addmm", "addmv", "baddbmm", "bmm", "bmm.out", "dot", "mm", "mv",
    // Layers and losses
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_log_softmax",
    "_log_softmax_backward_data", "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats", "_softmax", "_softmax_backward_data",
    "convolution", "convolution_backward", "convolution_backward_overrideable",
    "embedding_dense_backward", "gelu", "gelu_backward",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "mse_loss",
    "mse_loss_backward", "native_batch_norm", "native_batch_norm_backward",
    "native_dropout_backward", "native_layer_norm", "native_layer_norm_backward", "nll_loss_backward",
    "nll_loss_forward", "relu", "relu_", "sigmoid", "sigmoid_backward", "tanh",
    "tanh_backward", "threshold_backward",
    // Indexing
    "arange.start_out", "cat", "gather", "index.Tensor", "index_add_",
    "index_select", "scatter_add_",
    // Random numbers
    "bernoulli_.float", "normal_", "random_", "random_.from", "random_.to",
    "uniform_",
};
// clang-format on

/// Dropout on the device. The CPU operator would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input,
                                           double p,
                                           std::optional<bool> train) {
  auto mask = at::ones_like(input);
  if (train.value_or(true)) {
    mask.bernoulli_(1 - p);
  }
  const double scale = train.value_or(true) && p < 1 ? 1 / (1 - p) : 1;
  return {input * mask * scale, mask.to(at::kBool)};
}

/// Norms of a list of tensors. Lists of results cannot be deferred, so each
/// element is deferred separately.
std::vector<at::Tensor> foreach_norm(at::TensorList tensors,
                                     const at::Scalar& order,
                                     std::optional<at::ScalarType> dtype) {
  std::vector<at::Tensor> norms;
  for (const auto& tensor : tensors) {
    norms.push_back(at::linalg_vector_norm(tensor, order, {}, false, dtype));
  }
  return norms;
}

/// LibTorch's own implementation, after the set-up of `fill_freed_memory`. A
/// program's first device memory is allocated here.
at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout,
                 std::optional<at::Device> device,
                 std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  fill_freed_memory();
  return at::detail::empty_cuda(
      sizes, dtype, layout, device, pin_memory, format);
}

/// Suppresses LibTorch's warning about overridden kernels, which is intended
/// here.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// Never destroyed, because the destructor of a library restores the original
/// kernels.
[[maybe_unused]] const auto* const overrides = [] {
  // cuDNN would compile kernels for a real device.
  at::globalContext().setUserEnabledCuDNN(false);
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name : kOperators) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&deferred>());
  }
  library->impl("empty.memory_format", empty);
  library->impl("_foreach_norm.Scalar", foreach_norm);
  library->impl("native_dropout", dropout);
  library->impl("batch_norm_stats", batch_norm_stats);
  library->impl("batch_norm_gather_stats_with_counts",
                batch_norm_gather_stats_with_counts);
  library->impl("batch_norm_elemt", batch_norm_elemt);
  library->impl("batch_norm_backward_reduce", batch_norm_backward_reduce);
  library->impl("batch_norm_backward_elemt", batch_norm_backward_elemt);
  library->impl("_thnn_fused_lstm_cell", lstm_cell);
  library->impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  return library;
}();

}  // namespace
}  // namespace fake_gpu
