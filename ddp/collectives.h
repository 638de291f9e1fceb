#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// How `reduce_tensor` combines the ranks' values.
enum class Reduction { mean, sum, min, max };

/// Waits until every rank of `group` has called it.
///
/// @param group  null for all ranks. Without a process group it returns at
///   once.
/// @throws c10::Error when a rank has left or the group's time-out is over.
void barrier(const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Combines a tensor over all ranks and returns the result, the same on every
/// rank; `tensor` itself is not changed. For metrics: a loss, counts of hits.
///
/// @param tensor  any shape and device, the same shape and dtype on all ranks;
///   floating point or complex for `Reduction::mean`.
/// @returns a new tensor of the same shape, dtype and device, without history.
/// @throws c10::Error for the mean of integers, or when a rank has left.
///
/// Collective. Example:
/// @code
///   auto loss = ddp::reduce_tensor(batch_loss.detach()).item<double>();
///   auto hits = ddp::reduce_tensor(local_hits, ddp::Reduction::sum);
/// @endcode
at::Tensor reduce_tensor(
    const at::Tensor& tensor,
    Reduction reduction = Reduction::mean,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Gives every rank the texts of all ranks, by rank. For logs, and for what has
/// no tensor's shape. The texts may differ in length; world size 1 gives back
/// `mine` alone.
///
/// @throws c10::Error when a rank has left or the group's time-out is over.
///
/// Collective. Example:
/// @code
///   const auto hosts = ddp::all_gather_text(host_name);
///   std::cout << "rank 1 runs on " << hosts.at(1) << "\n";
/// @endcode
std::vector<std::string> all_gather_text(
    const std::string& mine,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Seeds LibTorch's generators of every device with `seed + rank()`, so that
/// dropout and augmentation differ between ranks and repeat between runs.
///
/// Parameters need not be initialised equally: DistributedDataParallel takes
/// them from rank 0.
///
/// @returns a new CPU generator with the same seed, for a program's own use.
at::Generator seed_everything(uint64_t seed);

}  // namespace ddp
