#pragma once

#include <dp/parameter_server.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace samples {

/// Replicas of one network in this process, each on a device. All begin with
/// the parameters and buffers of the first.
class LocalView {
 public:
  using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

  explicit LocalView(const Replicas& replicas);
  virtual ~LocalView() = default;
  LocalView(const LocalView&) = delete;
  LocalView& operator=(const LocalView&) = delete;

  /// One step of all replicas by their `.grad`s.
  ///
  /// @param shares  weight of each replica's gradients: n_i / n for the mean
  ///   loss over n_i of n examples.
  virtual void step(const std::vector<double>& shares) = 0;

  /// By replica, what its device sent and received in all steps.
  const std::vector<dp::MovedBytes>& moved() const { return moved_; }

 protected:
  /// Gives every replica the parameters and buffers of the first.
  void broadcast();
  void count_move(size_t from, size_t to, const torch::Tensor& tensor);

  std::vector<std::vector<torch::Tensor>> trained_;  // by replica
  std::vector<std::vector<torch::Tensor>> state_;    // with buffers
  std::vector<dp::MovedBytes> moved_;
};

/// The first replica serves: its device adds up all gradients, steps the
/// optimizer and sends the parameters back. It receives and sends n - 1 times
/// the gradients and parameters, the others once.
class LocalParameterServer : public LocalView {
 public:
  LocalParameterServer(const Replicas& replicas,
                       const dp::OptimizerFactory& make_optimizer);
  void step(const std::vector<double>& shares) override;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// Each replica adds up its part of all gradients, gives it to the others and
/// steps an optimizer of its own: a reduce-scatter, then an all-gather. Each
/// device sends and receives 2 (n - 1) / n times the gradients. The elements
/// are added up in the order of the replicas, so the parameters are, bit for
/// bit, those of a LocalParameterServer.
class LocalAllReduce : public LocalView {
 public:
  LocalAllReduce(const Replicas& replicas,
                 const dp::OptimizerFactory& make_optimizer);
  void step(const std::vector<double>& shares) override;

 private:
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

}  // namespace samples
