#include "test/fake_gpu/ops/lstm_cell.h"

#include <ATen/ATen.h>

namespace fake_gpu {

using at::Tensor;

namespace {

Tensor gradient_or_zeros(const std::optional<Tensor>& gradient,
                         const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient
                                                     : at::zeros_like(like);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cell,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  Tensor gates = input_gates + hidden_gates;
  for (const auto& bias : {input_bias, hidden_bias}) {
    if (bias.has_value() && bias->defined()) {
      gates = gates + *bias;
    }
  }
  const auto parts = gates.chunk(4, 1);
  const Tensor input = parts[0].sigmoid();
  const Tensor forget = parts[1].sigmoid();
  const Tensor candidate = parts[2].tanh();
  const Tensor output = parts[3].sigmoid();
  const Tensor new_cell = forget * cell + input * candidate;
  return {output * new_cell.tanh(),
          new_cell,
          at::cat({input, forget, candidate, output}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const std::optional<Tensor>& grad_hidden,
    const std::optional<Tensor>& grad_new_cell,
    const Tensor& cell,
    const Tensor& new_cell,
    const Tensor& activated,
    bool has_bias) {
  const auto parts = activated.chunk(4, 1);
  const Tensor& input = parts[0];
  const Tensor& forget = parts[1];
  const Tensor& candidate = parts[2];
  const Tensor& output = parts[3];
  const Tensor squashed = new_cell.tanh();
  const Tensor hidden_part = gradient_or_zeros(grad_hidden, new_cell);
  const Tensor grad_cell = gradient_or_zeros(grad_new_cell, new_cell) +
                           hidden_part * output * (1 - squashed * squashed);
  const Tensor grad_gates =
      at::cat({grad_cell * candidate * input * (1 - input),
               grad_cell * cell * forget * (1 - forget),
               grad_cell * input * (1 - candidate * candidate),
               hidden_part * squashed * output * (1 - output)},
              1);
  return {
      grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

}  // namespace fake_gpu
