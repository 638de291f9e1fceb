#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// What must be equal on all ranks for a parameter or buffer.
struct TensorSpec {
  std::string name;
  /// "parameter", "sparse parameter", "buffer", or "option", which is no
  /// tensor.
  std::string kind;
  std::string shape;
  std::string strides;
  std::string dtype;
  std::string requires_grad;
  /// Which of the module's devices it lies on, "number 1" for that of the first
  /// tensor, and whether that is the rank's own; empty where ranks may differ
  /// in that.
  std::string device;
  /// A digest of its values, or an option's value; empty where they are not
  /// compared.
  std::string values;
};

TensorSpec describe(const std::string& name,
                    const std::string& kind,
                    const at::Tensor& tensor);

/// An option whose value, one line, must be equal on all ranks, too.
TensorSpec describe_option(const std::string& name, const std::string& value);

/// Notes the devices in `specs`, which describe `tensors`. Tensors that share a
/// device on one rank must do so on all, or the ranks' messages would differ.
/// @param own  of this rank in the group, over NCCL.
void number_devices(std::vector<TensorSpec>& specs,
                    const std::vector<at::Tensor>& tensors,
                    const std::optional<c10::Device>& own = std::nullopt);

/// Pure: one line that names the first difference between rank 0's module and
/// another's, or "" when all are equal. `ranks[r]` is the module of rank r.
std::string first_mismatch(const std::vector<std::vector<TensorSpec>>& ranks);

/// Pure: the same between most ranks and the first that differs from them.
std::string odd_one_out(const std::vector<std::vector<TensorSpec>>& ranks);

/// For `all_gather_text`.
std::string write_specs(const std::vector<TensorSpec>& specs);
std::vector<TensorSpec> read_specs(const std::string& text);

/// Throws the same c10::Error on every rank when the ranks' modules differ, or
/// when one has a reason of its own not to go on, one line. Collective.
void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<TensorSpec>& mine,
                         const std::string& refusal = "");

/// Pure: those of one dtype and device together, in the order of their first.
/// So groups pair across ranks, whose devices may have other numbers.
std::vector<std::vector<at::Tensor>> by_dtype_and_device(
    const std::vector<at::Tensor>& tensors);

/// Copies rank `source`'s values into the other ranks' tensors, a few large
/// messages for many tensors of one dtype and device. Collective. Works under
/// no_grad rules and does not count as a modification for autograd, so that a
/// graph that was recorded before stays valid.
/// @param message_bytes  at which a message is full.
void broadcast_from(int source,
                    c10d::Backend& group,
                    const std::vector<at::Tensor>& tensors,
                    int64_t message_bytes = 250 * 1024 * 1024);

}  // namespace ddp::detail
