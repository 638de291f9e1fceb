#include "samples/support/evaluate.h"

#include <ddp/collectives.h>
#include <ddp/data/distributed_sampler.h>
#include <ddp/process_group.h>
#include <torch/data/dataloader.h>
#include <torch/types.h>

namespace samples {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

// Returns the sum of the losses and the number of correct predictions over the
// images of a sampler. Images are passed to `forward` in the form in which they
// were loaded; `forward` returns the scores on `device`.
torch::Tensor add_up(const Images& images,
                     const ddp::DistributedSampler& sampler,
                     int64_t batch_size,
                     c10::Device device,
                     const Forward& forward) {
  auto loader = torch::data::make_data_loader(images, sampler, batch_size);
  auto sums = torch::zeros({2}, torch::dtype(torch::kFloat64).device(device));
  for (const auto& batch : *loader) {
    const auto target = batch.target.to(device);
    const auto scores = forward(batch.data);
    sums[0] +=
        torch::cross_entropy_loss(scores, target, {}, at::Reduction::Sum);
    sums[1] += (scores.argmax(1) == target).sum();
  }
  return sums;
}

Score to_score(const torch::Tensor& sums, int64_t count) {
  return {sums[0].item<double>() / static_cast<double>(count),
          sums[1].item<int64_t>(),
          count};
}

}  // namespace

Score evaluate(ParallelClassifier& model,
               const Images& images,
               int64_t batch_size) {
  const auto count = static_cast<int64_t>(*images.size());
  // A rank without images would not take part in the model's collectives.
  TORCH_CHECK(count >= ddp::world_size(),
              "Expected an image to test for each of ",
              ddp::world_size(),
              " ranks, but got ",
              count,
              ". Start fewer ranks.");
  const torch::NoGradGuard no_grad;
  const ddp::DistributedSampler sampler(
      *images.size(),
      ddp::DistributedSamplerOptions().shuffle(false).padding(false));
  model->eval();
  const auto device = ddp::local_device();
  const auto sums = add_up(
      images, sampler, batch_size, device, [&](const torch::Tensor& batch) {
        return model->forward(batch.to(device));
      });
  return to_score(ddp::reduce_tensor(sums, ddp::Reduction::sum), count);
}

Score evaluate_here(Classifier& model,
                    const Images& images,
                    int64_t batch_size) {
  model.eval();
  const auto device = model.parameters().front().device();
  return evaluate_here(
      images, batch_size, device, [&](const torch::Tensor& batch) {
        return model.forward(batch.to(device));
      });
}

Score evaluate_here(const Images& images,
                    int64_t batch_size,
                    c10::Device device,
                    const Forward& forward) {
  const torch::NoGradGuard no_grad;
  const ddp::DistributedSampler sampler(
      *images.size(),
      ddp::DistributedSamplerOptions().num_replicas(1).rank(0).shuffle(false));
  return to_score(add_up(images, sampler, batch_size, device, forward),
                  static_cast<int64_t>(*images.size()));
}

}  // namespace samples
