#include "samples/experiments/inspect_sync/experiment.h"

#include <ATen/record_function.h>
#include <ddp/ddp.h>

#include "samples/support/datasets.h"
#include "samples/support/models.h"

namespace samples {
namespace {

constexpr uint64_t kDropoutSeed = 1;

// Blocks until the GPU has finished its work, so that a profiler scope covers
// it.
void wait_for_device() {
  synchronize(ddp::local_device());
}

Dataset make_dataset(const InspectOptions& options) {
  return make_synthetic({options.shape[0], options.shape[1], options.shape[2]},
                        options.images);
}

ParallelClassifier wrap(const InspectOptions& options, const Dataset& dataset) {
  const auto network = make_model(
      options.model == "cnn" ? ModelKind::small_cnn : ModelKind::resnet18,
      dataset);
  network->to(ddp::local_device());
  return ParallelClassifier(network,
                            ddp::DistributedDataParallelOptions()
                                .bucket_cap_mb(options.bucket_cap_mb)
                                .first_bucket_cap_mb(options.bucket_cap_mb));
}

// Returns the indices of this rank's images in the first step.
std::vector<size_t> draw(const InspectOptions& options) {
  ddp::DistributedSampler sampler(static_cast<size_t>(options.images));
  sampler.reset();
  const int64_t world = ddp::world_size();
  return *sampler.next(
      static_cast<size_t>((options.batch_size + world - 1) / world));
}

template <typename Module>
void pass(Module& module,
          const torch::Tensor& images,
          const torch::Tensor& labels,
          const char* forward,
          const char* backward) {
  torch::Tensor loss;
  {
    RECORD_USER_SCOPE(forward);
    loss = torch::cross_entropy_loss(module.forward(images), labels);
    wait_for_device();
  }
  RECORD_USER_SCOPE(backward);
  loss.backward();
  wait_for_device();
}

}  // namespace

Experiment::Experiment(const InspectOptions& options)
    : dataset_(make_dataset(options)),
      indices_(draw(options)),
      model_(wrap(options, dataset_)),
      optimizer_(model_->parameters(), 0.01) {
  const auto batch = dataset_.train.get_batch(indices_);
  images_ = batch.data.to(ddp::local_device());
  labels_ = batch.target.to(ddp::local_device());
}

std::vector<std::string> Experiment::names() const {
  return model_->module()->named_parameters().keys();
}

void Experiment::step() {
  optimizer_.zero_grad();
  pass(*model_, images_, labels_, "forward", "backward");
  RECORD_USER_SCOPE("optimizer");
  optimizer_.step();
  wait_for_device();
}

void Experiment::pass_alone() {
  optimizer_.zero_grad();
  pass(*model_->module(), images_, labels_, "forward alone", "backward alone");
}

std::vector<torch::Tensor> Experiment::gradients(bool are_synchronised) {
  ddp::seed_everything(kDropoutSeed);
  optimizer_.zero_grad();
  if (are_synchronised) {
    pass(*model_, images_, labels_, "forward", "backward");
  } else {
    pass_alone();
  }
  std::vector<torch::Tensor> result;
  for (const auto& parameter : model_->module()->parameters()) {
    result.push_back(parameter.grad().cpu().clone());
  }
  return result;
}

}  // namespace samples
