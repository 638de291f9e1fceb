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

/// Specifies when gradients are applied to the parameters.
enum class UpdateMode {
  /// One update per round, with the mean of one push of every worker.
  /// Equivalent to DistributedDataParallel over the workers.
  synchronous,
  /// Each push is applied as an update of its own on arrival. Workers wait for
  /// a slow worker only if the staleness bound is reached.
  asynchronous,
};

/// One update of the parameters on one server.
struct Update {
  int64_t number = 0;  ///< number of earlier updates of these parameters
  /// The worker that pushed the gradients. 0 if synchronous, because all
  /// workers did.
  int worker = 0;
  /// Number of updates since that worker pulled the parameters. 0 if
  /// synchronous.
  int64_t staleness = 0;
  /// The loss that was passed to `push`; the workers' mean if synchronous. NaN:
  /// a worker passed none.
  double loss = 0;
};

/// Creates the optimizer of a server. `parameters` are the server's own copies
/// of the parameters in its shard: CPU leaves in the order of the module.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor> parameters)>;

/// Hook that a server calls before each update, with the gradients in place,
/// for example to set learning rates, clip gradients or log the training. The
/// hook sees the parameters of its server's shard alone, so with several
/// servers a gradient norm is that of the shard. A parameter without a gradient
/// in this update has an undefined `.grad`. Runs in the thread that called
/// `serve`, without gradient recording. An exception of the hook ends the job
/// on every rank.
using UpdateHook =
    std::function<void(const Update& update, torch::optim::Optimizer&)>;

/// Options of `serve` and `ParameterClient`. `servers`, `mode`, `timeout` and,
/// if asynchronous, `staleness_bound` must be equal on all ranks,
/// `gradients_held`, `checkpoint_every` and `resume` on all servers. Invalid
/// options are a c10::Error of `is_server`, `serve` and `ParameterClient`, on a
/// worker also those that only servers use.
///
/// Example:
/// @code
///   const auto options = dp::ParameterServerOptions()
///                            .servers(2)
///                            .mode(dp::UpdateMode::asynchronous)
///                            .staleness_bound(8);
/// @endcode
struct ParameterServerOptions {
  /// Number of servers, at most one for each trained parameter. Ranks 0 to
  /// servers - 1 serve; the others are workers. The parameters are distributed
  /// over the servers by size in bytes. A parameter is never split: a parameter
  /// larger than a fair share makes its server the busiest.
  TORCH_ARG(int, servers) = 1;
  /// Selects when gradients are applied.
  TORCH_ARG(UpdateMode, mode) = UpdateMode::synchronous;
  /// Asynchronous only: largest number of other updates between a worker's pull
  /// and the update by its push. The bound holds for every update of every
  /// server. With 0 only one worker computes at a time. While one of n equally
  /// fast workers computes, each other worker makes one update, sometimes two,
  /// so from about 2n on they seldom wait. For a much slower worker the others
  /// wait nevertheless, once its bound is reached. Not negative.
  TORCH_ARG(int64_t, staleness_bound) = 4;
  /// Servers only: called before each update.
  TORCH_ARG(UpdateHook, before_update) = nullptr;
  /// Servers only: number of workers' gradients that a server holds at a time,
  /// in addition to the sum of an update's gradients. Other workers wait until
  /// the server has room for their gradients. A server's memory therefore does
  /// not grow with the number of workers. It consists of these gradients, the
  /// sum, the parameters, the optimizer's state and, if asynchronous, 4 MiB for
  /// each worker that is receiving parameters. Positive.
  TORCH_ARG(int, gradients_held) = 4;
  /// Servers only: path of the checkpoint with the trained parameters of the
  /// shard and the state of the optimizer (LibTorch's, or a fused one). Buffers
  /// and frozen parameters are not in it. The folder must exist; a missing one
  /// is an error of the first checkpoint. Each server appends a dot and
  /// its number and keeps the previous file as PATH.NUMBER.before. Python's
  /// torch.load reads the files: {'model': ..., 'optimizer': ..., 'step':
  /// updates, 'run': number of the training}. The first checkpoint of a new
  /// training replaces the files of another training.
  TORCH_ARG(std::string, checkpoint) = "";
  /// Servers only: number of updates between checkpoints; needs `checkpoint`.
  /// Workers wait during the write. 0: no checkpoints. The end of the training
  /// writes none.
  TORCH_ARG(int64_t, checkpoint_every) = 0;
  /// Servers only: resumes from these files, or starts from the beginning if
  /// there are none. Every rank gets a c10::Error if only some servers have
  /// files, if a server can read none of its files, if the files belong to
  /// different trainings, or if the number of servers, the trained parameters
  /// or the optimizer's class have changed; the mode and the number of workers
  /// may change. Synchronous servers resume from the newest update that all of
  /// them have saved; it is an error if there is none. The optimizer's options,
  /// such as the learning rate, become those of the file. Updates are counted
  /// from that number, so after its first pull a worker's `version()` is the
  /// number of steps of the whole training.
  TORCH_ARG(bool, resume) = false;
  /// Time after which a silent peer counts as lost. A server's limit applies to
  /// a worker's computation between two calls of its client. A hook, step or
  /// checkpoint of a server may take longer, because the server sends signs of
  /// life to the workers meanwhile. A transfer may also take longer if each 4
  /// MiB of it arrive within the time-out.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
  /// Time limit for the arrival of all ranks. If rank 0 gives up, all ranks
  /// that wait with it give up as well.
  TORCH_ARG(std::chrono::milliseconds,
            connect_timeout) = std::chrono::minutes(5);
  /// Rank and world size, for use with `store`. Ranks on several hosts also
  /// need `host_count` and `master_addr`: with a `host_count` of 1, the
  /// default, Gloo uses the loopback interface. Unset: those of
  /// `ddp::init_process_group`, which has to come first.
  TORCH_ARG(std::optional<ddp::WorkerEnv>, worker_env) = std::nullopt;
  /// The store through which the ranks find each other, for use with
  /// `worker_env`. Null: `ddp::store()`. One of the two without the other is an
  /// invalid option.
  TORCH_ARG(c10::intrusive_ptr<c10d::Store>, store) = nullptr;
};

/// Returns true if this rank is one of the servers. Not collective.
/// @throws c10::Error if the world is too small for the servers and one worker,
///   or if an option is invalid.
bool is_server(const ParameterServerOptions& options = {});

/// Result of a server.
struct ServerReport {
  /// Including the updates before the checkpoint from which it resumed.
  int64_t updates = 0;
  /// `staleness[k]`: number of updates with a staleness of k.
  std::vector<int64_t> staleness;
  /// Workers (from 0) that were lost, in the order of their loss.
  std::vector<int> lost;
  MovedBytes moved;  ///< payload to and from all workers
};

/// Runs a parameter server on this rank until every worker has finished. The
/// server holds a shard of the parameters, averages or applies the gradients
/// that workers push, steps the optimizer and sends the parameters to the
/// workers. All ranks start with the parameters and buffers of `module` on rank
/// 0.
///
/// Afterwards, `module` contains the updated parameters of this server's shard;
/// all other parameters, and the buffers, have rank 0's initial values. This
/// also holds if an error during the training makes the function throw. A
/// worker that has finished has all parameters.
///
/// Only parameters that require a gradient at the time of this call are
/// trained. Frozen parameters and buffers are sent once, at the start. From
/// then on each worker's batch-norm statistics are its own. A parameter that is
/// registered twice counts once. An update skips a parameter for which none of
/// its workers has a gradient. If only some workers have a gradient, the others
/// count as zero, as in DistributedDataParallel with find_unused_parameters.
///
/// Workers and servers communicate over Gloo, independent of the backend of the
/// process group. Modules may be on GPUs.
///
/// Each update, and each call of a client, reports progress to `ddprun
/// --hang-timeout`. A rank that waits for others does not count as hung.
///
/// @param module  has the same parameters and buffers as on the workers: names,
///   shapes, strides, dtypes and requires_grad.
/// @param make_optimizer  called once. The server calls the optimizer's
///   `step()` without a closure.
/// @returns the report of this server. If asynchronous, a lost worker is not an
///   error.
///
/// @throws c10::Error on every rank if the options or modules of the ranks
///   differ, or a rank calls the function of the other role; if there are more
///   servers than trained parameters; if ranks are missing after
///   `connect_timeout`; if the servers cannot resume (see `resume`) or cannot
///   write a checkpoint; if synchronous and a finished or lost worker made
///   fewer pushes than another one (all workers need equally many batches); if
///   all workers are lost without having called finish(); if a worker has lost
///   another server; or if the optimizer or the hook throws. The workers
///   receive the same reason. A server remains until each worker has received
///   the reason or was silent for the time-out.
///
/// Collective: the other ranks call `serve` or construct a `ParameterClient`.
/// May be called again after it has returned on all ranks.
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

/// The worker's side of `serve`; see there.
///
/// If a client is destroyed without `finish`, for example because of an
/// exception, its connections are closed and the servers detect the loss at
/// once.
///
/// Every member function that communicates throws c10::Error if the job has
/// ended: a server is lost, or has reported why it ended. The client then
/// reports the reason to the other servers.
///
/// Thread contract: one thread.
class ParameterClient {
 public:
  /// Collective, as `serve`. Copies rank 0's parameters and buffers to
  /// `module`.
  ///
  /// @throws c10::Error if `module` is null, and as `serve` for all that the
  ///   ranks find out before the training starts. A factory of a server that
  ///   throws, a checkpoint that does not fit and every later error are thrown
  ///   by the next `pull`, `push` or `finish`.
  explicit ParameterClient(std::shared_ptr<torch::nn::Module> module,
                           const ParameterServerOptions& options = {});
  /// As above, for a module holder.
  template <class Impl>
  explicit ParameterClient(const torch::nn::ModuleHolder<Impl>& module,
                           const ParameterServerOptions& options = {})
      : ParameterClient(std::shared_ptr<torch::nn::Module>(module.ptr()),
                        options) {}
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  /// Copies the servers' parameters to the module. Synchronous: blocks until
  /// the update that contains this worker's last push. Asynchronous: blocks
  /// while more workers compute than the staleness bound allows. Call `pull`
  /// only when the gradients of these parameters are computed next, because
  /// other workers may wait for them. A second pull replaces the first one. If
  /// asynchronous, parts of the parameters may contain later updates than
  /// `version()` reports.
  void pull();

  /// Sends the module's gradients; sparse gradients are sent as dense ones.
  /// Returns when the servers have received them. An error of the update is
  /// thrown by the next call. Blocks while a server has no room for the
  /// gradients (`gradients_held`). Leaves the `.grad`s unchanged: zero them
  /// before the next backward pass.
  ///
  /// @param loss  value for `Update::loss` on the servers; not used otherwise.
  /// @throws c10::Error if the parameters were not pulled since the last push.
  void push(double loss = std::numeric_limits<double>::quiet_NaN());

  /// Announces that this worker makes no further push, blocks until all workers
  /// have finished or are lost, and copies the final parameters to the module.
  /// They are the same on every worker. The last pull need not have a push.
  /// Afterwards `pull`, `push` and `finish` throw.
  void finish();

  /// Returns this worker's number in [0, workers()), for example for a sampler.
  int worker() const;
  /// Returns the number of workers at the start.
  int workers() const;
  /// Returns the number of updates that the last pulled parameters contain: the
  /// smallest number over the servers. 0 before the first pull.
  int64_t version() const;
  /// Returns the payload bytes to and from all servers. Space for parameters
  /// without a gradient is sent, too.
  MovedBytes moved() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dp
