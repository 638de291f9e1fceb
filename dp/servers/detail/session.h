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

/// What a rank has once all have met.
struct Session {
  Topology topology;
  /// On a worker one for each server, on a server one for each worker.
  std::vector<std::unique_ptr<Link>> links;
  /// Why the rest of the links is missing, or "": those who are connected are
  /// to be told of it.
  std::string problem;
  /// For each server the parameters that it holds: tensors of the module.
  std::vector<std::vector<at::Tensor>> shards;
  std::vector<std::vector<std::string>> names;  ///< theirs
  /// By server the update to go on from; empty for the start.
  std::vector<int64_t> resume_at;
  int64_t run = 0;  ///< number of the training, the same on all ranks
};

/// Meets the other ranks: agrees on the options, checks that the modules are
/// alike, gives them rank 0's parameters and buffers and connects workers with
/// servers. Collective. After an error on any rank all ranks may try again.
///
/// @param saved  on a server, what it could go on from.
/// @throws c10::Error on every rank when they do not agree, or when ranks are
///   missing after the connect_timeout. Where only links are missing, the
///   session has a problem instead.
Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role,
                     const ResumePoints& saved = {});

}  // namespace dp::detail
