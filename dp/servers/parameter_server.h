#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

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
  /// Number of updates between the parameters that the worker had pulled and
  /// this one: the gradients belong to the parameters after `number -
  /// staleness` updates. 0 if synchronous.
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

/// Options of `serve` and `ParameterClient`; equal on all ranks, except for
/// `before_update` and `checkpoint`. Invalid options are a c10::Error of
/// `is_server`, `serve` and `ParameterClient`.
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
  /// Servers only: path of the checkpoints. Each server keeps its last two in a
  /// folder of its own, PATH.0, PATH.1 and so on; the parent must exist. A
  /// file is one of `ddp::Checkpoint`, which Python's torch.load reads, too:
  /// {'model': ..., 'optimizer': ..., 'step': updates}. The model is the
  /// server's module. Its parameters of other servers, its buffers and frozen
  /// parameters have their values of the start. With one server, the file loads
  /// into a plain program.
  TORCH_ARG(std::string, checkpoint) = "";
  /// Number of updates between checkpoints; needs `checkpoint`. Workers wait
  /// during the write. 0: no checkpoints. The end of the training writes none.
  /// It is an error if PATH.N exists, unless `resume` is set.
  TORCH_ARG(int64_t, checkpoint_every) = 0;
  /// Resumes from the newest checkpoint, or starts from the beginning if there
  /// is none; needs `checkpoint`. Synchronous servers resume from the newest
  /// update that all of them have saved. Every rank gets a c10::Error if only
  /// some servers have checkpoints, or if the checkpoint of a server cannot be
  /// read or does not fit: use the same parameters, number of servers and class
  /// of optimizer. The mode and the number of workers may change. The
  /// file's options of the optimizer, such as the learning rate, are used.
  /// Updates are counted from its number, so after its first pull a worker's
  /// `version()` is the number of updates of the whole training.
  TORCH_ARG(bool, resume) = false;
};

/// Returns true if this rank is one of the servers of the job of
/// `ddp::init_process_group`. Not collective.
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
/// 0. Call `ddp::init_process_group` first.
///
/// Afterwards, `module` contains the updated parameters of this server's shard.
/// This also holds if an error during the training makes the function throw. A
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
/// process group. Modules may be on GPUs. Beside the parameters and the
/// optimizer's state a server's memory contains, in multiples of the shard: two
/// gradients if synchronous, which are summed in the order of the workers, and
/// one gradient for each worker if asynchronous.
///
/// A worker is lost when it reports an error, when its process ends, or when
/// neither a request nor an expected message of it arrives within
/// `ddp::ProcessGroupOptions::timeout`. Asynchronous: the other workers go on,
/// once all ranks have joined. Synchronous: all ranks get an error. The
/// time-out also bounds each wait of a worker, that of `finish()` for the
/// slowest worker included.
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
/// @throws c10::Error on every rank, with the reason, if the options or modules
///   of the ranks differ, or a rank calls the function of the other role; if
///   there are more servers than trained parameters; if a server cannot resume
///   or cannot write a checkpoint; if synchronous and a worker is lost or
///   finishes with fewer pushes than another one (all workers need equally many
///   batches); if all workers are lost; if a server is lost; or if the
///   optimizer or the hook throws. A worker that computes gets the error in its
///   next call. After an error of a server the job has to end.
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
/// exception, its connections are closed, and the servers see that it is lost.
///
/// Every member function that communicates throws c10::Error if a server is
/// lost or has reported why it ended, or if the time-out of
/// `ddp::ProcessGroupOptions` is over. The client cannot be used afterwards.
///
/// Thread contract: one thread.
class ParameterClient {
 public:
  /// Collective, as `serve`. Copies rank 0's parameters and buffers to
  /// `module`.
  ///
  /// @throws c10::Error if `module` is null, or as `serve`. A factory of a
  ///   server that throws, and every later error, are thrown by the next
  ///   `pull`, `push` or `finish`.
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

  /// Copies the servers' parameters to the module: of each server, all
  /// parameters of its shard after one and the same update. Synchronous: blocks
  /// until the update that contains this worker's last push. Asynchronous:
  /// blocks while more workers compute than the staleness bound allows. Call
  /// `pull` only when the gradients of these parameters are computed next,
  /// because other workers may wait for them. A second pull replaces the first
  /// one.
  void pull();

  /// Sends the module's gradients; sparse gradients are sent as dense ones.
  /// Returns when the servers have received them: if synchronous, after the
  /// gradients of the workers with lower numbers. An error of the update is
  /// thrown by the next call. Leaves the `.grad`s unchanged: zero them before
  /// the next backward pass.
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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dp
