#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>

#include "ddp/wrap/distributed_data_parallel.h"

// The scenarios of gpu_two_ranks, each run by both ranks, and their tools. If a
// scenario throws c10::Error, its rank prints the error and exits with 1.
namespace ddp::test {

/// @throws c10::Error with the rank and `message` if the condition is false.
void expect(bool condition, const std::string& message);

/// Returns the text of the c10::Error that `action` throws, or "".
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Starts a job on the GPU of this rank; `shift` selects another GPU. All jobs
/// of the process have one address. DDP_TEST_TIMEOUT is the time limit of a
/// collective in seconds; default 60.
void join(int shift = 0);

/// With DDP_TEST_DELAY_MS the GPU sleeps before each gradient of the module is
/// ready, so that an operation that does not wait for the gradient's stream
/// overtakes it.
void delay_gradients(const torch::nn::Module& module);

/// A linear layer with a known gradient: the mean over the ranks of its input.
struct Known {
  explicit Known(bool as_view = false);
  void step();
  bool is_right() const;

  torch::nn::Linear net{5, 3};
  std::unique_ptr<DistributedDataParallel<torch::nn::LinearImpl>> model;
};

/// Checks that no wrapper option and no exchange makes the host wait for the
/// GPU in a step.
void check_host_waits();

/// Both ranks take the same GPU, which NCCL must refuse. Throws its error.
void share_a_gpu();

// Trainings that end by a fault: the rank with the fault throws its error, the
// other rank an error that names the first one.

/// Trains until a fault from outside, such as a signal.
void train_on();
/// Rank 1 asks for more memory than the GPU has.
void run_out_of_memory();
/// A kernel of rank 1 reads outside of its tensor. All further CUDA calls of
/// that process fail.
void fail_on_device();
/// Rank 1 aborts the group while work is queued.
void abort_group();

}  // namespace ddp::test
