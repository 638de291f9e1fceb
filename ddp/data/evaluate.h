#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// Computes something for each sample of a data set, each once on one of the
/// ranks, and gives every rank all of it in the order of the samples: so any
/// metric is exact and the same on every rank, whatever the number of ranks and
/// of samples.
///
/// @param count       number of samples; may be smaller than the number of
///   ranks.
/// @param batch_size  samples of one rank at a time.
/// @param results     is given the indices of some samples, and returns a dense
///   tensor with a row for each, in their order. Called with gradient recording
///   off, as often as this rank has batches; so it must not communicate (the
///   forward of `DistributedDataParallel` does not).
/// @returns a tensor with `count` rows, on the device of the results; on a rank
///   without samples on the CPU, or with NCCL on its GPU.
/// @throws what `results` throws; then c10::Error on the other ranks, with this
///   rank and its reason. c10::Error on every rank when the rows do not fit
///   together, or when a rank has left.
///
/// The model is to be in evaluation mode. Collective; at its end all results
/// are gathered. A sampler with padding, as for training, counts some samples
/// twice.
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

/// The same of a data set of torch::data that can be asked for any batch.
///
/// @param results  is given what `dataset.get_batch` returns.
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

/// Puts together what ranks have computed of their samples by loops of their
/// own: rank r gives the rows of samples r, r + p, r + 2 p, ... of p ranks, as
/// `DistributedSampler` with shuffle(false) and padding(false) draws them.
/// Every rank gets the rows of all, in the order of the samples.
///
/// @param rows   dense; may be undefined on a rank without samples.
/// @param count  number of samples of the data set.
/// @throws c10::Error on every rank when one gives another number of rows, or
///   rows that do not fit.
///
/// Collective.
at::Tensor all_gather_samples(
    const at::Tensor& rows,
    size_t count,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

}  // namespace ddp
