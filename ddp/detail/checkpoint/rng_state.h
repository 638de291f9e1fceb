#pragma once

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace ddp::detail {

/// The states of this rank's default generators, as bytes to send: the CPU's,
/// and the GPU's behind it.
///
/// @param gpu  the rank's GPU, if it has one.
std::string rng_bytes(std::optional<c10::Device> gpu);

/// These bytes as {'cpu': tensor, 'cuda': tensor or None}: the tensors of
/// Python's torch.get_rng_state and torch.cuda.get_rng_state.
c10::IValue rng_value(const std::string& bytes);

/// @throws c10::Error when the value is no such state; changes nothing.
void check_rng(const c10::IValue& value, std::optional<c10::Device> gpu);

/// Sets the generators. A state for a GPU that is not there is left aside.
void restore_rng(const c10::IValue& value, std::optional<c10::Device> gpu);

}  // namespace ddp::detail
