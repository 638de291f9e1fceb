#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace ddp::detail {

/// Returns the process's GPUs, with the modules' GPUs first: their indices may
/// differ in the next run. Empty if no module is on a GPU.
///
/// @param modules  may contain null pointers.
std::vector<c10::Device> gpus_of(
    const std::vector<const torch::nn::Module*>& modules);

/// Returns the states of this rank's default generators as bytes to send: the
/// CPU's, then the GPUs'.
std::string rng_bytes(const std::vector<c10::Device>& gpus);

/// Converts these bytes to {'cpu': tensor, 'cuda': [tensor, ...]}, with the
/// tensors of Python's torch.get_rng_state and torch.cuda.get_rng_state.
c10::IValue rng_value(const std::string& bytes);

/// @throws c10::Error if the value is not a valid state; changes nothing.
void check_rng(const c10::IValue& value, const std::vector<c10::Device>& gpus);

/// Sets the generators; GPU i of the list gets state i. Additional states are
/// ignored, and GPUs without a state keep theirs.
void restore_rng(const c10::IValue& value,
                 const std::vector<c10::Device>& gpus);

}  // namespace ddp::detail
