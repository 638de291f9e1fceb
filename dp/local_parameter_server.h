#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "dp/detail/parameter_server/local_replicas.h"
#include "dp/moved_bytes.h"
#include "dp/parameter_server.h"

namespace dp {

/// The parameter-server view of data parallel training in one process: the
/// first of several replicas serves. After each replica's backward pass, its
/// gradients go to the first one's device and are added up, the optimizer steps
/// there, and the parameters go back.
///
/// Its device receives and sends n - 1 times the gradients and parameters, the
/// others once: that is what an all-reduce (`LocalAllReduce`) spreads evenly.
///
/// Sums are formed in the order of the replicas, so a training repeats bit for
/// bit.
///
/// Thread contract: one thread, while no replica computes.
///
/// Example:
/// @code
///   auto second = std::dynamic_pointer_cast<NetImpl>(net->clone(gpu_1));
///   dp::LocalParameterServer server({net.ptr(), second}, [](auto parameters) {
///     return std::make_unique<torch::optim::SGD>(parameters, 0.1);
///   });
///   loss(net, half).backward();
///   loss(second, other_half).backward();
///   server.step();
/// @endcode
///
/// Source: Li et al., "Scaling Distributed Machine Learning with the Parameter
/// Server", OSDI 2014, with threads of one process for its nodes;
/// torch.nn.DataParallel reduces and broadcasts so at every pass.
class LocalParameterServer {
 public:
  /// Gives all replicas the parameters and buffers of the first.
  ///
  /// @param replicas  modules of one structure, on any devices
  /// @param make_optimizer  for the trained parameters of the first; called
  ///   once
  /// @throws c10::Error when the replicas differ in a name, shape or dtype.
  LocalParameterServer(
      const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
      const OptimizerFactory& make_optimizer);

  /// Reduces, steps and broadcasts.
  ///
  /// @param shares  what the gradients of each replica count: n_i / n for the
  ///   mean loss over n_i of n examples. Empty: all the same.
  void step(const std::vector<double>& shares = {});

  /// The first part of `step`: the first replica's gradients become the
  /// weighted sum, those of the others are gone. One that no replica has stays
  /// undefined, one that only some have counts as zero on the others.
  void reduce(const std::vector<double>& shares = {});
  /// The last part of `step`: parameters and buffers of the first replica are
  /// everyone's.
  void broadcast();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  /// By replica, since it was made. The first broadcast is not counted.
  const std::vector<MovedBytes>& moved() const { return moved_; }

 private:
  detail::LocalReplicas replicas_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<MovedBytes> moved_;
};

}  // namespace dp
