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

/// Gives every rank the tensor of one.
///
/// @param tensor  any dense tensor on rank `from`. Of the other ranks' only the
///   device is looked at, where the result goes; they may give an undefined
///   one, for the CPU or with NCCL the rank's GPU.
/// @param from  a rank of the group.
/// @returns a new tensor, without history.
/// @throws c10::Error when `from` is no rank, on every rank when its tensor is
///   undefined or not dense, or when a rank has left.
///
/// Collective. Example:
/// @code
///   auto order = ddp::broadcast(torch::randperm(count));  // rank 0's
/// @endcode
at::Tensor broadcast(const at::Tensor& tensor,
                     int from = 0,
                     const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Gives every rank the tensors of all ranks, by rank.
///
/// @param tensor  dense, of one dtype on all ranks and of the same sizes but
///   for the first: ranks may have different numbers of rows, and none. An
///   undefined one is no rows.
/// @returns new tensors, without history, on the device of `tensor`; undefined
///   ones when every rank gave such.
/// @throws c10::Error on every rank when the tensors do not fit together, with
///   the ranks, or when a rank has left.
///
/// Collective. All send as many bytes as the one with most. Example:
/// @code
///   auto scores = torch::cat(ddp::all_gather(my_scores));
/// @endcode
std::vector<at::Tensor> all_gather(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// The same for rank `to` of the group alone; the others get an empty vector.
std::vector<at::Tensor> gather(
    const at::Tensor& tensor,
    int to = 0,
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
