#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <torch/ordered_dict.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"

// Functions for parameters and buffers of a module, which are equal on all
// ranks: the description that `verify_across_ranks` compares, broadcast and
// mean.
namespace ddp::detail {

/// Returns the defined tensors without the ignored names. A tensor with several
/// names (shared weights) appears once, with its first name that is not
/// ignored.
std::vector<NamedParameter> distinct_tensors(
    const torch::OrderedDict<std::string, at::Tensor>& tensors,
    const std::set<std::string>& ignored = {});

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named);

/// Returns a line for each parameter, then one for each buffer, with all
/// properties in which ranks must agree: "parameter fc.weight of Float [4, 3],
/// strides [3, 1], requires_grad true".
std::vector<std::string> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers);

/// Appends to each line the number of its tensor's device within the module: 1
/// for the device of the first tensor. Tensors that share a device on one rank
/// must share a device on all ranks, because the messages to broadcast are
/// formed per device.
/// @param lines  describe `tensors`.
/// @param own  this rank's device in the group, with NCCL.
void number_devices(std::vector<std::string>& lines,
                    const std::vector<at::Tensor>& tensors,
                    const std::optional<c10::Device>& own = std::nullopt);

/// Pure: groups tensors of one dtype and device, in the order of the first one
/// of each group.
std::vector<std::vector<at::Tensor>> by_dtype_and_device(
    const std::vector<at::Tensor>& tensors);

/// Pure: groups the tensors into messages of one dtype and device each. The
/// messages of different ranks correspond, although device indices may differ
/// between ranks.
/// @param message_bytes  maximum size of a message, approximately: a tensor is
///   not divided.
std::vector<std::vector<at::Tensor>> messages_of(
    const std::vector<at::Tensor>& tensors, int64_t message_bytes);

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

/// Returns the tensors that require a gradient.
std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters);

/// Replaces the tensors by their means over the ranks, in place, with few large
/// messages per dtype and device. Needs memory for one message beside the
/// tensors. Collective. After an error only some of the tensors may be means.
///
/// @param operation  for errors: "average of parameters".
/// @param message_bytes  maximum size of a message, approximately.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& operation = "average of parameters",
                        int64_t message_bytes = 250 * 1024 * 1024);

}  // namespace ddp::detail
