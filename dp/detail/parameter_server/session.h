#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dp/detail/parameter_server/claims.h"
#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/resume.h"
#include "dp/detail/parameter_server/topology.h"
#include "dp/parameter_server.h"

namespace dp::detail {

/// The way to the other ranks of a session.
struct Route {
  c10::intrusive_ptr<c10d::Store> store;
  std::string reach;
  std::chrono::milliseconds timeout;
};

/// What a rank has once all have met.
struct Session {
  Topology topology;
  Route route;
  /// On a worker one for each server, on a server one for each worker.
  std::vector<std::unique_ptr<Link>> links;
  /// For each server the parameters that it holds: tensors of the module.
  std::vector<std::vector<at::Tensor>> shards;
  std::vector<std::vector<std::string>> names;  ///< theirs
  /// By server the update to go on from; empty for the start.
  std::vector<int64_t> resume_at;
};

/// Meets the other ranks: agrees on the options, checks that the modules are
/// alike, gives them rank 0's parameters and buffers and connects workers with
/// servers. Collective.
///
/// @param saved  on a server, what it could go on from.
/// @throws c10::Error on every rank when they do not agree, or when ranks are
///   missing after the connect_timeout.
Session join_session(torch::nn::Module& module,
                     const ParameterServerOptions& options,
                     Role role,
                     const SavedStates& saved = {});

/// Key in the session's store once it is over.
constexpr const char* kSessionOver = "over";

/// The session that is, without connections: for a worker that comes back.
Session find_session(torch::nn::Module& module,
                     const ParameterServerOptions& options);

/// Connects with one peer: a server with a worker, or a worker with a server.
/// @param name  of the connections, the same on both sides.
std::unique_ptr<Link> connect_pair(const Session& session,
                                   const std::string& name,
                                   int peer,
                                   std::chrono::milliseconds timeout);

}  // namespace dp::detail
