#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/packet.h"
#include "dp/parameter_server.h"

namespace dp::detail {

/// The rows that a worker asks each server for, once each; undefined for the
/// parameters of which it wants all.
/// @param shards  the parameters of each server.
/// @throws c10::Error for rows of another tensor, rows that are not there, and
///   numbers that are no integers.
std::vector<Rows> wanted_rows(
    const std::vector<ParameterRows>& rows,
    const std::vector<std::vector<at::Tensor>>& shards);

}  // namespace dp::detail
