#pragma once

#include <set>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"

namespace ddp::detail {

/// The named tensors of a module, split into shared and rank-local ones.
struct WrappedModule {
  std::vector<NamedParameter> parameters;
  std::vector<NamedParameter> buffers;
  std::vector<at::Tensor> ignored;  ///< parameters that stay local to each rank
};

/// Lists the module's parameters and buffers without the ignored ones. Weights
/// of Embedding and EmbeddingBag layers with sparse(true) are marked as sparse.
/// @throws c10::Error if an ignored name matches no parameter and no buffer.
WrappedModule list_tensors(torch::nn::Module& module,
                           const std::set<std::string>& ignored);

/// Returns whether this is a group of the job over Gloo. Returns false for a
/// backend of the program around a group of the job: that backend may count
/// or change the all-reduces.
bool is_gloo_group_of_job(const c10d::Backend& group);

/// Verifies that the ranks' modules agree and, if `copies`, broadcasts rank 0's
/// parameters and buffers. Collective.
/// @param options  a line for each option that must be equal on all ranks;
///   compared before the modules.
/// @param refusal  the reason why this rank cannot continue, or "".
/// @param moves  whether the caller then moves tensors on the CPU to NCCL's
///   device.
/// @throws c10::Error on every rank if modules or options differ, if a
///   parameter is on a device that NCCL cannot use, or if a rank refuses.
void verify_and_broadcast(c10d::Backend& group,
                          c10::Device device,
                          const WrappedModule& mine,
                          const std::vector<std::string>& options,
                          bool copies,
                          const std::string& refusal = "",
                          bool moves = false);

}  // namespace ddp::detail
