#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Parameters of `gather_rows`.
struct RowsToGather {
  std::string what;          ///< name of the operation, for errors
  at::Tensor mine;           ///< dense, or undefined for no rows
  std::string failure = "";  ///< error of this rank; all ranks throw it
  std::optional<int> to = std::nullopt;  ///< the only receiver
};

/// Gathers the tensors of all ranks, by rank, on the device of this rank's
/// tensor. Returns an empty vector on a rank that receives nothing. A rank
/// without a tensor contributes a tensor with zero rows; the results are
/// undefined tensors if no rank has one. The results are new tensors without
/// autograd history. Collective.
///
/// @param group  null for a world of one.
/// @throws c10::Error, the same on every rank, if the tensors do not fit
///   together or a rank has failed.
std::vector<at::Tensor> gather_rows(
    const c10::intrusive_ptr<c10d::Backend>& group, const RowsToGather& rows);

/// Broadcasts the tensor of rank `from`. The result lies on the device of this
/// rank's tensor; it is a new tensor without autograd history. Collective.
///
/// @param mine  may be undefined on the other ranks.
/// @throws c10::Error, the same on every rank, if the tensor of `from` is
///   undefined or not dense.
at::Tensor broadcast_rows(const c10::intrusive_ptr<c10d::Backend>& group,
                          const at::Tensor& mine,
                          int from);

}  // namespace ddp::detail
