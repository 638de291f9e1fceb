#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "samples/experiments/model_parallel/two_stages.h"

namespace samples {

/// A pass through two stages with one number of micro-batches.
struct Pass {
  int64_t micro_batches;
  double forward;  // milliseconds, median of the rounds
  double backward;
  double both;  // part of a forward in which both stages are at work
  torch::Tensor scores;
  std::vector<torch::Tensor> gradients;
};

/// Measures one number of micro-batches on this rank.
///
/// @param timeline  file for a trace of a forward pass of all ranks; empty:
///   none.
///
/// Collective, where there is a timeline.
Pass measure(TwoStages& network,
             const torch::data::Example<>& batch,
             int64_t micro_batches,
             int64_t rounds,
             const std::string& timeline);

/// A line for each pass.
/// @throws c10::Error when the file cannot be written.
void write_csv(const std::string& file, const std::vector<Pass>& passes);

/// The greatest difference of an element.
double greatest_difference(const std::vector<torch::Tensor>& a,
                           const std::vector<torch::Tensor>& b);

}  // namespace samples
