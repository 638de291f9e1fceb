#pragma once

#include <dp/parameter_server.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace samples {

/// Replicas of one network in this process, one per device. All start with the
/// parameters and buffers of the first replica.
class LocalView {
 public:
  using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

  explicit LocalView(const Replicas& replicas);
  virtual ~LocalView() = default;
  LocalView(const LocalView&) = delete;
  LocalView& operator=(const LocalView&) = delete;

  /// Makes one step of all replicas with their `.grad`s.
  ///
  /// @param shares  weight of each replica's gradients: n_i / n for the mean
  ///   loss over n_i of n examples.
  virtual void step(const std::vector<double>& shares) = 0;

  /// Bytes that each replica's device sent and received in all steps.
  const std::vector<dp::MovedBytes>& moved() const { return moved_; }

 protected:
  /// Copies the parameters and buffers of the first replica to all others.
  void broadcast();
  void count_move(size_t from, size_t to, const torch::Tensor& tensor);

  std::vector<std::vector<torch::Tensor>> trained_;  // by replica
  std::vector<std::vector<torch::Tensor>> state_;    // by replica, with buffers
  std::vector<dp::MovedBytes> moved_;
};

/// The first replica is the server: its device sums all gradients, steps the
/// optimizer and sends the parameters back. It receives n - 1 times the
/// gradients and sends n - 1 times the parameters; each other device sends and
/// receives once.
class LocalParameterServer : public LocalView {
 public:
  LocalParameterServer(const Replicas& replicas,
                       const dp::OptimizerFactory& make_optimizer);
  void step(const std::vector<double>& shares) override;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// Each replica sums its part of all gradients, sends the sum to the others and
/// steps its own optimizer: a reduce-scatter, then an all-gather. Each device
/// sends and receives 2 (n - 1) / n times the gradients. Elements are added in
/// the order of the replicas, so the parameters are bitwise equal to those of a
/// LocalParameterServer.
class LocalAllReduce : public LocalView {
 public:
  LocalAllReduce(const Replicas& replicas,
                 const dp::OptimizerFactory& make_optimizer);
  void step(const std::vector<double>& shares) override;

 private:
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

}  // namespace samples
