#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// What to gather.
struct RowsToGather {
  std::string what;          ///< is done, for errors
  at::Tensor mine;           ///< dense, or undefined for no rows
  std::string failure = "";  ///< why this rank has none: all ranks throw it
  std::optional<int> to = std::nullopt;  ///< the one rank that gets all
};

/// Every rank's tensor, by rank, on the device of this one's; nothing on a rank
/// that gets none. A rank without a tensor has one of no rows there; undefined
/// where no rank has one. New tensors, without history. Collective.
///
/// @param group  null for a world of one.
/// @throws c10::Error, the same on every rank, when the tensors do not fit
///   together or a rank has failed.
std::vector<at::Tensor> gather_rows(
    const c10::intrusive_ptr<c10d::Backend>& group, const RowsToGather& rows);

/// Rank `from`'s tensor, on the device of this rank's. New, without history.
/// Collective.
///
/// @param mine  may be undefined on the other ranks.
/// @throws c10::Error, the same on every rank, when that of `from` is undefined
///   or not dense.
at::Tensor broadcast_rows(const c10::intrusive_ptr<c10d::Backend>& group,
                          const at::Tensor& mine,
                          int from);

}  // namespace ddp::detail
