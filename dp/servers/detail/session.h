#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// A worker's request. Every message is a broadcast in the group of a server
/// (rank 0) and a worker (rank 1).
enum class Request : int64_t {
  pull,     ///< answered with the parameters
  push,     ///< followed by the gradients
  drop,     ///< the worker makes no push for the parameters that it pulled last
  finish,   ///< answered with the final parameters
  received  ///< the final parameters have arrived
};

/// @throws c10::Error if the world is too small for the servers and one worker,
///   or if an option is invalid.
void check(const ParameterServerOptions& options);

/// The ranks that train together, seen from one of them. A group of two ranks
/// connects each server with each worker, so the death of a worker ends its own
/// groups alone. All groups are over Gloo and belong to the job.
class Session {
 public:
  using Group = c10::intrusive_ptr<c10d::Backend>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  static constexpr int kServer = 0;  ///< rank in a group of two
  static constexpr int kWorker = 1;

  /// Checks that the ranks have equal options and modules, copies rank 0's
  /// parameters and buffers to `module`, and connects workers with servers.
  /// Collective.
  Session(torch::nn::Module& module, const ParameterServerOptions& options);
  /// Aborts the groups that are open.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int servers() const { return servers_; }
  int workers() const { return workers_; }
  /// Parameters in the shard of each server: tensors of the module.
  const std::vector<std::vector<at::Tensor>>& shards() const { return shards_; }

  /// The group of all ranks.
  const Group& all() const { return all_; }

  /// Starts a message with a peer: on a server a worker, on a worker a server.
  /// @param from  kServer or kWorker.
  Work start(int peer, const at::Tensor& message, int from) const;
  /// Waits for the message.
  /// @throws c10::Error that says why it cannot arrive.
  void wait(int peer, const Work& work) const;

  /// The group with a peer.
  const c10d::Backend& group_with(int peer) const { return *pairs_[peer]; }
  /// Closes the group with a peer. If it was not aborted, both sides have
  /// completed their messages.
  void close(int peer) const { pairs_[peer]->shutdown(); }
  /// Ends the messages with a peer, or with all peers, with an error on both
  /// sides.
  void abort(int peer) const { pairs_[peer]->abort(); }
  void abort() const;

  /// Returns "parameter server 1 (rank 1)" or "worker 0 (rank 2)".
  std::string name_of(int rank) const;
  /// Returns "worker 0 (rank 2) is gone: " and the reason, for the first of
  /// these ranks that has ended or reported an error; or "".
  std::string departure_of(const std::vector<int>& ranks) const;

 private:
  void equalize(torch::nn::Module& module) const;
  void make_shards(const torch::nn::Module& module);
  void connect_pairs();

  int servers_;
  int workers_;
  std::vector<std::vector<at::Tensor>> shards_;
  Group all_;
  std::vector<Group> pairs_;  // by peer
};

}  // namespace dp::detail
