#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/cluster/worker_env.h"
#include "dp/base/moved_bytes.h"

namespace dp {

/// When gradients become an update of the parameters.
enum class UpdateMode {
  /// One update a round: the mean of one push of every worker. The same
  /// training as DistributedDataParallel's over the workers.
  synchronous,
  /// Each push is an update of its own as soon as it comes. Nobody waits for a
  /// slow worker until the bound on the staleness is reached.
  asynchronous,
};

/// One update, as its server sees it.
struct Update {
  int64_t number = 0;  ///< updates of these parameters before this one
  /// Whose gradients: the worker that pushed; with several (synchronous), the
  /// first.
  int worker = 0;
  /// Updates since that worker pulled the parameters. 0 when synchronous.
  int64_t staleness = 0;
  /// What `push` was given; the workers' mean when synchronous. NaN: nothing.
  double loss = 0;
};

/// Makes the optimizer of a server. It gets the server's own copies of the
/// parameters that it holds: CPU leaves in the order of the module.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor> parameters)>;

/// Called on a server before each of its updates, with the gradients in place:
/// for learning rates, clipping, a record of the training. Called in the thread
/// that called `serve`. An exception of the hook ends the job, on every rank.
using UpdateHook =
    std::function<void(const Update& update, torch::optim::Optimizer&)>;

/// Options of `serve` and `ParameterClient`. `servers`, `mode`,
/// `staleness_bound` and `timeout` must be equal on all ranks,
/// `gradients_held`, `checkpoint_every` and `resume` on all servers.
///
/// Example:
/// @code
///   const auto options = dp::ParameterServerOptions()
///                            .servers(2)
///                            .mode(dp::UpdateMode::asynchronous)
///                            .staleness_bound(8);
/// @endcode
struct ParameterServerOptions {
  /// Ranks 0 to servers - 1 serve, the others work. The parameters are spread
  /// over the servers by their bytes. Each stays whole: one that is larger than
  /// a fair share makes its server the busiest.
  TORCH_ARG(int, servers) = 1;
  TORCH_ARG(UpdateMode, mode) = UpdateMode::synchronous;
  /// Asynchronous only: how many other updates may come between a worker's
  /// pull and the update by its push. It holds for every update of every
  /// server. 0 lets one worker compute at a time; n workers run freely from
  /// about 2n on.
  TORCH_ARG(int64_t, staleness_bound) = 4;
  /// On servers: called before each update.
  TORCH_ARG(UpdateHook, before_update) = nullptr;
  /// On servers: how many workers' gradients one holds at once, beside the sum
  /// of those that make an update; the others wait until it has room for
  /// theirs. A server's memory does not grow with the workers: these, the sum,
  /// the parameters, what the optimizer keeps and, asynchronous, 4 MiB for each
  /// worker that is receiving parameters.
  TORCH_ARG(int, gradients_held) = 4;
  /// On servers: a file for the parameters and the state of the optimizer
  /// (LibTorch's, or a fused one). Each server appends a dot and its number,
  /// and keeps the file before as PATH.NUMBER.before. Python's torch.load reads
  /// them: {'model': ..., 'optimizer': ..., 'step': updates, 'run': number of
  /// the training}. The first checkpoint of a training that begins afresh
  /// replaces the files of another one.
  TORCH_ARG(std::string, checkpoint) = "";
  /// On servers: write it after so many updates, while the workers wait. 0:
  /// never.
  TORCH_ARG(int64_t, checkpoint_every) = 0;
  /// On servers: go on from these files; where there are none, from the start.
  /// Files of different trainings on the servers are an error.
  /// Synchronous servers take the newest update that all have. Updates count
  /// from there, so after its first pull a worker's `version()` says how many
  /// steps the training has made.
  TORCH_ARG(bool, resume) = false;
  /// How long the other side may be silent before it counts as gone. For a
  /// server that is a worker's computation between two calls of its client. A
  /// hook, a step or a checkpoint of a server may take longer: the server tells
  /// the workers meanwhile that it is still there. So may a transfer of which
  /// each 4 MiB arrive in time.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
  /// How long to wait for all ranks to arrive. Where rank 0 gives up, so do all
  /// ranks that wait with it.
  TORCH_ARG(std::chrono::milliseconds,
            connect_timeout) = std::chrono::minutes(5);
  /// Rank and world size, with `store`. Unset: those of
  /// `ddp::init_process_group`.
  TORCH_ARG(std::optional<ddp::WorkerEnv>, worker_env) = std::nullopt;
  /// The store through which the ranks find each other, with `worker_env`.
  /// Null: `ddp::store()`.
  TORCH_ARG(c10::intrusive_ptr<c10d::Store>, store) = nullptr;
};

/// True when this rank is one of the servers.
/// @throws c10::Error when the world has no room for that many servers and a
///   worker.
bool is_server(const ParameterServerOptions& options = {});

/// What a server has done.
struct ServerReport {
  int64_t updates = 0;  ///< with those before a checkpoint that it went on from
  /// `staleness[k]`: how many updates were k updates stale.
  std::vector<int64_t> staleness;
  /// Workers (from 0) that died, in the order in which they did.
  std::vector<int> lost;
  MovedBytes moved;
};

/// Serves on this rank until every worker has finished: holds a part of the
/// parameters, averages or applies the gradients that workers push, steps the
/// optimizer and hands the parameters out. The parameters and buffers of
/// `module` on rank 0 are those that all begin with.
///
/// Afterwards, also when it throws for what has happened in the training, the
/// parameters that this server held are in `module` as its updates have left
/// them; the others are as they were. A worker that has finished has them all.
///
/// Only parameters that require a gradient when this is called are trained.
/// Frozen ones and buffers are sent once, at the start; from then on each
/// worker's batch-norm statistics are its own. A parameter registered twice is
/// one. A parameter for which no worker of an update has a gradient is left as
/// it is by that update; where some have one, the others count as zero, as in
/// DistributedDataParallel with find_unused_parameters.
///
/// Workers send over Gloo, whatever the process group uses; modules may be on
/// GPUs.
///
/// @param module  built as on the workers: same names, shapes, dtypes.
/// @param make_optimizer  called once.
/// @returns what happened. Lost workers are no error when asynchronous, nor
///   when synchronous after their last push.
///
/// @throws c10::Error on every rank when the ranks' options or modules differ;
///   when the push of a worker that is gone is missed (synchronous); when all
///   workers are gone and had not called finish(); when a worker lost another
///   server; when the optimizer or the hook throws. The workers get the same
///   reason: a server stays until each has heard it or was silent for the
///   timeout.
///
/// Collective: the other ranks call `serve` or make a `ParameterClient`. May be
/// called again after it returned on all of them.
///
/// Example:
/// @code
///   const auto options = dp::ParameterServerOptions().servers(1);
///   if (dp::is_server(options)) {
///     dp::serve(*net, [](auto parameters) {
///       return std::make_unique<torch::optim::SGD>(parameters, 0.1);
///     }, options);
///   } else {
///     dp::ParameterClient client(net, options);
///     for (auto& batch : *loader) {
///       client.pull();
///       net->zero_grad();
///       loss(net, batch).backward();
///       client.push();
///     }
///     client.finish();
///   }
/// @endcode
///
/// Source: Li et al., "Scaling Distributed Machine Learning with the Parameter
/// Server", OSDI 2014; Dean et al., "Large Scale Distributed Deep Networks",
/// NeurIPS 2012.
ServerReport serve(torch::nn::Module& module,
                   const OptimizerFactory& make_optimizer,
                   const ParameterServerOptions& options = {});

/// A worker's side of `serve`; see there.
///
/// A client that goes without `finish`, because of an exception for instance,
/// closes its connections, so the servers know at once.
///
/// Every call but the constructor throws c10::Error when the job has ended:
/// a server is gone, or says why it ended. The other servers are told.
///
/// Thread contract: one thread.
class ParameterClient {
 public:
  /// Collective, as `serve`. `module` gets rank 0's parameters and buffers.
  ///
  /// @throws c10::Error as `serve`.
  explicit ParameterClient(std::shared_ptr<torch::nn::Module> module,
                           const ParameterServerOptions& options = {});
  template <class Impl>
  explicit ParameterClient(const torch::nn::ModuleHolder<Impl>& module,
                           const ParameterServerOptions& options = {})
      : ParameterClient(std::shared_ptr<torch::nn::Module>(module.ptr()),
                        options) {}
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  /// Copies the servers' parameters into the module. Synchronous: waits for the
  /// update that contains this worker's last push. Asynchronous: waits while
  /// more workers compute than the bound lets; call it when the gradients of
  /// these parameters come next, since others may wait for them. Parts of the
  /// parameters may then contain later updates than `version()` says.
  void pull();

  /// Sends the module's gradients, sparse ones as dense ones. Returns when the
  /// servers have received them; an error of the update comes with the next
  /// call. Waits while a server has no room for them (`gradients_held`). The
  /// `.grad`s stay as they are: zero them before the next backward pass.
  ///
  /// @param loss  for the servers' `Update`; nothing is computed with it.
  /// @throws c10::Error when the parameters were not pulled since the last
  ///   push.
  void push(double loss = std::numeric_limits<double>::quiet_NaN());

  /// Says that this worker pushes no more, waits until all workers have said
  /// so or are lost, and takes the last parameters: the same on every worker.
  /// The client can do no more afterwards.
  void finish();

  /// This worker's number in [0, workers()): for a sampler, for instance.
  int worker() const;
  /// Workers at the start.
  int workers() const;
  /// Updates that the parameters contain which were pulled last; of the server
  /// that had made the fewest.
  int64_t version() const;
  /// Payload to and from all servers. A parameter without a gradient travels,
  /// too.
  MovedBytes moved() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dp
