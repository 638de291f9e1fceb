#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "samples/experiments/model_parallel/two_stages.h"

namespace samples {

/// Measurements of passes through two stages with one number of micro-batches.
struct Pass {
  int64_t micro_batches;
  double forward;  // milliseconds, median over the rounds
  double backward;
  double both;  // share of a forward in which both stages compute
  torch::Tensor scores;
  std::vector<torch::Tensor> gradients;
};

/// Measures passes with `micro_batches` micro-batches on this rank.
///
/// @param timeline  file for a trace of a forward pass of all ranks; empty: no
///   trace.
///
/// Collective if `timeline` is not empty.
Pass measure(TwoStages& network,
             const torch::data::Example<>& batch,
             int64_t micro_batches,
             int64_t rounds,
             const std::string& timeline);

/// Writes one line per pass.
/// @throws c10::Error if the file cannot be written.
void write_csv(const std::string& file, const std::vector<Pass>& passes);

/// Returns the greatest elementwise difference.
double greatest_difference(const std::vector<torch::Tensor>& a,
                           const std::vector<torch::Tensor>& b);

}  // namespace samples
