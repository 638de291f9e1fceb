#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dp/servers/detail/handshake.h"
#include "dp/servers/detail/link.h"
#include "dp/servers/detail/resume_points.h"
#include "dp/servers/detail/topology.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// A rank's state after all ranks have joined.
struct Session {
  Topology topology;
  /// One link per server on a worker, one per worker on a server.
  std::vector<std::unique_ptr<Link>> links;
  /// Why further links are missing, or "". The caller reports the problem to
  /// the connected peers.
  std::string problem;
  /// Parameters in each server's shard: tensors of the module.
  std::vector<std::vector<at::Tensor>> shards;
  /// Names of the shards' parameters.
  std::vector<std::vector<std::string>> names;
  /// For each server the update from which it resumes; empty: from the
  /// beginning.
  std::vector<int64_t> resume_at;
  int64_t run = 0;  ///< number of the training, the same on all ranks
};

/// Joins a session with the other ranks: agrees on the options, checks that the
/// modules have the same parameters and buffers, copies rank 0's parameters and
/// buffers, and connects workers with servers. Collective. After an error on
/// any rank, all ranks may try again.
///
/// @param saved  on a server: states from which it can resume.
/// @throws c10::Error on every rank if the ranks do not agree, or if ranks are
///   missing after `connect_timeout`. If only links are missing, `problem` is
///   set instead.
Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role,
                     const ResumePoints& saved = {});

}  // namespace dp::detail
