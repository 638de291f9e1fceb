#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace ddp::detail {

/// The process's GPUs, those that the modules lie on first: a rank's own, which
/// may have another number the next time. None when no module lies on any.
///
/// @param modules  may hold nulls.
std::vector<c10::Device> gpus_of(
    const std::vector<const torch::nn::Module*>& modules);

/// The states of this rank's default generators, as bytes to send: the CPU's,
/// and the GPUs'.
std::string rng_bytes(const std::vector<c10::Device>& gpus);

/// These bytes as {'cpu': tensor, 'cuda': [tensor, ...]}: the tensors of
/// Python's torch.get_rng_state and torch.cuda.get_rng_state.
c10::IValue rng_value(const std::string& bytes);

/// @throws c10::Error when the value is no such state; changes nothing.
void check_rng(const c10::IValue& value, const std::vector<c10::Device>& gpus);

/// Sets the generators, each GPU's to that of the same place. States for GPUs
/// that are not there are left aside.
void restore_rng(const c10::IValue& value,
                 const std::vector<c10::Device>& gpus);

}  // namespace ddp::detail
