#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// The leaves that the graph of `outputs` accumulates into, each once.
/// @param since  `at::sequence_number::peek()` before this graph was made, on
///   this thread.
/// @throws c10::Error when the graph goes on into an older one: a tensor with a
///   history has come in by another way than as an input.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs,
                                  uint64_t since);

/// Runs a backward pass in which nothing accumulates: no `.grad` changes, and
/// no hook of a leaf is called.
/// @param outputs  with a graph that nobody else uses; it is spent.
/// @param leaves  whose gradients are asked for; others get none.
/// @return the gradient of each leaf, undefined where none comes.
std::vector<at::Tensor> leaf_gradients(const std::vector<at::Tensor>& outputs,
                                       const std::vector<at::Tensor>& gradients,
                                       const std::vector<at::Tensor>& leaves);

}  // namespace ddp::detail
