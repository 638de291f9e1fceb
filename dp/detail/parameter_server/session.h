#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/topology.h"
#include "dp/parameter_server.h"

namespace dp::detail {

enum class Role { server, worker };

/// What a rank has once all have met.
struct Session {
  Topology topology;
  /// On a worker one for each server, on a server one for each worker.
  std::vector<std::unique_ptr<Link>> links;
  /// For each server the parameters that it holds: tensors of the module.
  std::vector<std::vector<at::Tensor>> shards;
};

/// Meets the other ranks: agrees on the options, checks that the modules are
/// alike, gives them rank 0's parameters and buffers and connects workers with
/// servers. Collective.
///
/// @throws c10::Error on every rank when they do not agree, or when ranks are
///   missing after the connect_timeout.
Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role);

/// What a rank says of itself when it comes, and why what the ranks said makes
/// no job: one line, or "". Pure.
std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role);
std::string claims_problem(const std::vector<std::string>& claims, int servers);

}  // namespace dp::detail
