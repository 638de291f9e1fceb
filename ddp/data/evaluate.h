#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// Computes a result for each sample of a dataset and gathers the results on
/// every rank, in the order of the samples. Each sample is computed once, on
/// one of the ranks. So any metric is exact and equal on every rank, for any
/// number of ranks and samples. Collective; call it from the thread that uses
/// the group.
///
/// @param count  number of samples, equal on all ranks, which is not checked;
///   may be smaller than the number of ranks.
/// @param batch_size  number of samples per call of `results`; positive, else
///   c10::Error.
/// @param results  function that gets the indices of some samples and returns a
///   dense tensor with one row per sample, in the same order. It runs without
///   gradient recording. The number of calls differs between ranks, so it must
///   not communicate (the forward of `DistributedDataParallel` does not).
/// @param group  null: all ranks. A rank that `new_group` gave null must not
///   make the call.
/// @returns a tensor with `count` rows, on the device of the results. On a rank
///   without samples the tensor is on the CPU, or with NCCL on the rank's GPU;
///   if `count` is 0, on the CPU.
/// @throws the exception of `results` on its own rank; the other ranks throw
///   c10::Error with this rank and its reason. c10::Error on every rank if
///   `results` returns a wrong number of rows, if the rows of two ranks differ
///   in dtype or shape, or those of two calls in shape (their dtypes are
///   promoted, as by at::cat), or if a rank has left. The ranks that are done
///   wait for the others up to the group's time-out, and then throw c10::Error.
///
/// Switch the model to evaluation mode first. All results are gathered at the
/// end. Do not use a sampler with padding, as for training: it counts some
/// samples twice.
///
/// Example:
/// @code
///   model->eval();
///   auto hits = ddp::evaluate(images.size(0), 64, [&](const auto& indices) {
///     auto chosen = torch::tensor(std::vector<int64_t>(indices.begin(),
///                                                      indices.end()));
///     auto guesses = model->forward(images.index_select(0, chosen)).argmax(1);
///     return guesses == labels.index_select(0, chosen);
///   });
///   double accuracy = hits.to(torch::kFloat).mean().item<double>();
/// @endcode
at::Tensor evaluate(
    size_t count,
    size_t batch_size,
    const std::function<at::Tensor(const std::vector<size_t>& indices)>&
        results,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

/// As above, for a torch::data dataset with random access.
///
/// @param results  function that gets the result of `dataset.get_batch`.
///
/// Example:
/// @code
///   using torch::data::datasets::MNIST;
///   auto dataset = MNIST(path, MNIST::Mode::kTest)
///                      .map(torch::data::transforms::Stack<>());
///   auto guesses = ddp::evaluate(dataset, 64, [&](const auto& batch) {
///     return model->forward(batch.data.to(device)).argmax(1);
///   });
/// @endcode
template <typename Dataset,
          typename Results,
          typename = decltype(std::declval<Dataset&>().size().value())>
at::Tensor evaluate(Dataset&& dataset,
                    size_t batch_size,
                    const Results& results,
                    const c10::intrusive_ptr<c10d::Backend>& group = nullptr) {
  return evaluate(
      size_t{dataset.size().value()},
      batch_size,
      [&](const std::vector<size_t>& indices) -> at::Tensor {
        return results(dataset.get_batch(indices));
      },
      group);
}

/// Gathers results that the ranks have computed in their own loops. Of p ranks,
/// rank r passes the rows of the samples r, r + p, r + 2 p, ..., as
/// `DistributedSampler` with shuffle(false) and padding(false) draws them.
/// Every rank gets the rows of all samples, in the order of the samples.
/// Collective.
///
/// @param rows  dense; may be undefined on a rank without samples.
/// @param count  number of samples of the dataset, equal on all ranks.
/// @param group  null: all ranks.
/// @returns as `evaluate`, without autograd history, and on the device of
///   `rows` wherever it is defined.
/// @throws c10::Error on every rank if a rank passes a wrong number of rows, if
///   the rows do not fit together, if a rank has left, or if the group's
///   time-out is over.
at::Tensor all_gather_samples(
    const at::Tensor& rows,
    size_t count,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

}  // namespace ddp
