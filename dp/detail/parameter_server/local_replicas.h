#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "dp/moved_bytes.h"

namespace dp::detail {

/// The tensors of several modules of one structure, by replica.
struct LocalReplicas {
  std::vector<std::vector<at::Tensor>> trained;  ///< that require a gradient
  std::vector<std::vector<at::Tensor>> state;    ///< parameters and buffers

  size_t size() const { return state.size(); }
};

/// @throws c10::Error when there is no module or they differ.
LocalReplicas list_replicas(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

/// Copies the first replica's state to the others and counts what moves.
void broadcast_state(const LocalReplicas& replicas,
                     std::vector<MovedBytes>& moved);

/// Adds a tensor of some bytes that goes from one replica to another.
void count_move(std::vector<MovedBytes>& moved,
                size_t from,
                size_t to,
                int64_t bytes);

/// The shares that were asked for, or equal ones.
/// @throws c10::Error when their number is not that of the replicas.
std::vector<double> complete_shares(const std::vector<double>& shares,
                                    size_t replicas);

}  // namespace dp::detail
