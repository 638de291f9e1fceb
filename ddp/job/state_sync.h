#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::detail {

/// Properties of a parameter, buffer or option that must be equal on all ranks.
struct TensorSpec {
  std::string name;
  /// "parameter", "sparse parameter", "buffer", or "option" (which has no
  /// tensor).
  std::string kind;
  std::string shape;
  std::string strides;
  std::string dtype;
  std::string requires_grad;
  /// Index of the tensor's device within the module ("number 1" for the device
  /// of the first tensor), and whether it is the rank's own device. Empty if
  /// ranks may differ in it.
  std::string device;
  /// Digest of the tensor's values, or the value of an option. Empty if values
  /// are not compared.
  std::string values;
};

TensorSpec describe(const std::string& name,
                    const std::string& kind,
                    const at::Tensor& tensor);

/// Describes an option whose value (one line) must be equal on all ranks.
TensorSpec describe_option(const std::string& name, const std::string& value);

/// Fills in the devices of `specs`, which describe `tensors`. Tensors that
/// share a device on one rank must share a device on all ranks, because the
/// messages to broadcast are formed per device.
/// @param own  this rank's device in the group, with NCCL.
void number_devices(std::vector<TensorSpec>& specs,
                    const std::vector<at::Tensor>& tensors,
                    const std::optional<c10::Device>& own = std::nullopt);

/// Pure: returns one line with the first difference between the module of rank
/// 0 and another rank's, or "" if all are equal. `ranks[r]` is the module of
/// rank r.
std::string first_mismatch(const std::vector<std::vector<TensorSpec>>& ranks);

/// Pure: as `first_mismatch`, between the most common module and the first rank
/// that differs from it.
std::string majority_mismatch(
    const std::vector<std::vector<TensorSpec>>& ranks);

/// Converts specs to text and back, for `all_gather_text`.
std::string specs_to_text(const std::vector<TensorSpec>& specs);
std::vector<TensorSpec> specs_from_text(const std::string& text);

/// Checks that the modules of all ranks agree. Collective.
/// @param refusal  this rank's own reason to stop, one line, or "".
/// @throws c10::Error, the same on every rank, if modules differ or a rank
///   refuses.
void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<TensorSpec>& mine,
                         const std::string& refusal = "");

/// Pure: groups the tensors by dtype and device, in the order of their first
/// members. The groups of different ranks correspond, although device indices
/// may differ between ranks.
std::vector<std::vector<at::Tensor>> by_dtype_and_device(
    const std::vector<at::Tensor>& tensors);

/// Copies the parts of `flat`, which flatten_dense_tensors has made of
/// `tensors` on another rank, into `tensors`. Autograd sees no change. Gradient
/// recording must be off.
void copy_pieces(const at::Tensor& flat,
                 const std::vector<at::Tensor>& tensors);

/// Copies the values of rank `source` into the other ranks' tensors, with few
/// large messages per dtype and device. Collective. Runs without gradient
/// recording and does not count as a modification for autograd, so that
/// recorded graphs stay valid.
/// @param message_bytes  maximum size of a message, approximately.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void broadcast_from(int source,
                    c10d::Backend& group,
                    const std::vector<at::Tensor>& tensors,
                    int64_t message_bytes = 250 * 1024 * 1024);

}  // namespace ddp::detail
