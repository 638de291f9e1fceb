#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "dp/detail/parameter_server/local_replicas.h"
#include "dp/moved_bytes.h"
#include "dp/parameter_server.h"

namespace dp {

/// The all-reduce view of data parallel training in one process, beside
/// `LocalParameterServer`: every replica adds up its part of all gradients and
/// gives it to the others, and steps an optimizer of its own.
///
/// Each device sends and receives 2 (n - 1) / n times the gradients, to the
/// nearest element. Elements are added up in the order of the replicas, so the
/// parameters are, bit for bit, those of a LocalParameterServer.
///
/// Thread contract: one thread, while no replica computes.
///
/// Example:
/// @code
///   dp::LocalAllReduce ranks({net.ptr(), second}, make_optimizer);
///   loss(net, half).backward();
///   loss(second, other_half).backward();
///   ranks.step();
/// @endcode
///
/// Source: Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for
/// Clusters of Workstations", 2009: reduce-scatter, then all-gather.
class LocalAllReduce {
 public:
  /// Gives all replicas the parameters and buffers of the first.
  ///
  /// @param make_optimizer  called once for each replica
  /// @throws c10::Error when the replicas differ in a name, shape or dtype.
  LocalAllReduce(
      const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
      const OptimizerFactory& make_optimizer);

  /// All-reduces the gradients and steps every optimizer. `shares` as in
  /// LocalParameterServer.
  void step(const std::vector<double>& shares = {});

  /// The first part of `step`: every replica's gradients become the weighted
  /// sum.
  void reduce(const std::vector<double>& shares = {});

  const std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers()
      const {
    return optimizers_;
  }

  /// By replica, since it was made. The first broadcast is not counted.
  const std::vector<MovedBytes>& moved() const { return moved_; }

 private:
  detail::LocalReplicas replicas_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<MovedBytes> moved_;
};

}  // namespace dp
