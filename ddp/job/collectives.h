#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

// Without a process group the functions of this header act as in a world of
// one. A null group is the group of all ranks: a rank that `new_group` gave
// null must not make the call. After an error for a rank that has left, or for
// the time-out, the group cannot be used again. A wrong argument throws on its
// own rank; the other ranks wait until that rank leaves the job or the time-out
// is over. Thread contract: use each group from one thread only.
namespace ddp {

/// How `reduce_tensor` combines the ranks' values.
enum class Reduction { mean, sum, min, max };

/// Waits until every rank of `group` has called it. Collective.
///
/// @param group  null: all ranks. Without a process group it returns at once.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void barrier(const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Combines a tensor over all ranks and returns the result, which is equal on
/// all ranks; `tensor` itself is not changed. For metrics: a loss, counts of
/// hits. Collective.
///
/// @param tensor  any shape and device; the same shape and dtype on all ranks,
///   which is not checked; floating point or complex for `Reduction::mean`, no
///   bool for `Reduction::sum`. The backend must be able to combine the dtype:
///   Gloo combines no 16-bit integers, and complex numbers only for the mean
///   and the sum.
/// @param group  null: all ranks.
/// @returns a new tensor of the same shape, dtype and device, without autograd
///   history.
/// @throws c10::Error if the tensor is undefined, for the mean of integers, the
///   sum of bools, for a dtype that the backend cannot combine, if a rank has
///   left or the group's time-out is over. With NCCL the function only queues
///   the work of a tensor on a GPU: the next collective of the group throws for
///   a rank that leaves later, and the result is then undefined.
///
/// Example:
/// @code
///   auto loss = ddp::reduce_tensor(batch_loss.detach()).item<double>();
///   auto hits = ddp::reduce_tensor(local_hits, ddp::Reduction::sum);
/// @endcode
at::Tensor reduce_tensor(
    const at::Tensor& tensor,
    Reduction reduction = Reduction::mean,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Broadcasts the tensor of one rank to all ranks. Collective.
///
/// @param tensor  on rank `from` any dense tensor. On the other ranks only its
///   device matters: it becomes the device of the result. An undefined tensor
///   selects the CPU, or with NCCL the rank's GPU.
/// @param from  a rank of the group.
/// @param group  null: all ranks.
/// @returns a new tensor without autograd history.
/// @throws c10::Error if `from` is not a rank of the group; on every rank if
///   the tensor of `from` is undefined or not dense; if a rank has left or the
///   group's time-out is over. With NCCL the last transfer of a tensor on a GPU
///   is only queued, as in `reduce_tensor`.
///
/// Example:
/// @code
///   auto order = ddp::broadcast(torch::randperm(count));  // rank 0's
/// @endcode
at::Tensor broadcast(const at::Tensor& tensor,
                     int from = 0,
                     const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Gathers the tensors of all ranks on every rank, by rank. Collective. Every
/// rank sends as many bytes as the rank with the largest tensor.
///
/// @param tensor  dense; the same dtype on all ranks, and the same sizes except
///   for the first: the number of rows may differ between ranks and may be
///   zero. An undefined tensor counts as zero rows. If a tensor has no
///   dimensions, all ranks must have a tensor without dimensions.
/// @param group  null: all ranks.
/// @returns new tensors without autograd history, on the device of `tensor` (if
///   that is undefined, on the CPU, or with NCCL on the rank's GPU); all of
///   them are undefined if the tensors of all ranks are undefined.
/// @throws c10::Error on every rank if the tensors do not fit together (the
///   message names the ranks); if a rank has left or the group's time-out is
///   over. With NCCL the last transfer of a tensor on a GPU is only queued, as
///   in `reduce_tensor`.
///
/// Example:
/// @code
///   auto scores = torch::cat(ddp::all_gather(my_scores));
/// @endcode
std::vector<at::Tensor> all_gather(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// As `all_gather`, but only rank `to` of the group gets the tensors. The other
/// ranks get an empty vector.
/// @throws c10::Error also if `to` is not a rank of the group.
std::vector<at::Tensor> gather(
    const at::Tensor& tensor,
    int to = 0,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Gathers the texts of all ranks on every rank, by rank. For logs, and for
/// data without a tensor form. The texts may differ in length. A world of one
/// gets `mine` only. Collective.
///
/// @throws c10::Error if a rank has left or the group's time-out is over.
///
/// Example:
/// @code
///   const auto hosts = ddp::all_gather_text(host_name);
///   std::cout << "rank 1 runs on " << hosts.at(1) << "\n";
/// @endcode
std::vector<std::string> all_gather_text(
    const std::string& mine,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// Seeds LibTorch's generators of all devices with `seed + rank()`, so that
/// dropout and augmentation differ between ranks and are the same in every run.
/// Call `init_process_group` first, because `rank()` is 0 on every rank before.
///
/// Parameters need no equal initialisation: DistributedDataParallel copies them
/// from rank 0.
///
/// @returns a new CPU generator with the same seed, for the program's own use.
at::Generator seed_everything(uint64_t seed);

}  // namespace ddp
