#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fake_gpu {

/// LibTorch's fused LSTM cell exists for CUDA only, without CPU code. This one
/// is composed of other operators. `gates` are {batch, 4 x hidden}, in the
/// order input, forget, cell, output. Returns the hidden state, the cell state,
/// and the activated gates for the backward pass.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cell,
    const std::optional<at::Tensor>& input_bias,
    const std::optional<at::Tensor>& hidden_bias);

/// Returns the gradients of the gates, of the cell state and of the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hidden,
    const std::optional<at::Tensor>& grad_new_cell,
    const at::Tensor& cell,
    const at::Tensor& new_cell,
    const at::Tensor& activated,
    bool has_bias);

}  // namespace fake_gpu
