#include "test/bench/dp_vs_ddp/digits_training.h"

#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/models.h"
#include "samples/support/stopwatch.h"

namespace ddp::bench {

using namespace samples;

namespace {

constexpr uint64_t kSeed = 0;

// A classifier that registers the memory of its forward pass for its device.
class Metered : public Classifier {
 public:
  Metered(std::shared_ptr<Classifier> network,
          std::shared_ptr<MemoryMeter> meter,
          size_t owner)
      : network_(register_module("network", std::move(network))),
        meter_(std::move(meter)),
        owner_(owner) {
    eval();  // no dropout, because its masks would differ between replicas
  }

  torch::Tensor forward(const torch::Tensor& images) override {
    const MemoryMeter::Scope scope(*meter_, owner_);
    meter_->move(images, owner_);  // counts images copied from another device
    return network_->forward(images);
  }

 private:
  std::shared_ptr<Classifier> network_;
  std::shared_ptr<MemoryMeter> meter_;
  size_t owner_;
};

torch::Tensor shuffle(const Dataset& dataset, int64_t batch_size) {
  const auto count = static_cast<int64_t>(*dataset.train.size());
  TORCH_CHECK(batch_size <= count,
              "Expected a --batch-size of at most ",
              count,
              ", the number of images, but got ",
              batch_size,
              ".");
  torch::manual_seed(kSeed);
  return torch::randperm(count);
}

}  // namespace

Mlp::Mlp(const ImageShape& shape, int64_t width, int64_t classes)
    : fc1_(shape.channels * shape.height * shape.width, width),
      fc2_(width, width),
      fc3_(width, classes) {
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
  register_module("fc3", fc3_);
}

torch::Tensor Mlp::forward(const torch::Tensor& images) {
  const auto x = torch::relu(fc1_(images.flatten(1)));
  return fc3_(torch::relu(fc2_(x)));
}

void add_digits_training_options(CommandLine& line,
                                 DigitsTrainingOptions& options) {
  line.add("--batch-size", options.batch_size, "Images of a step").at_least(1);
  line.add("--model",
           options.model,
           "cnn, or mlp: many parameters for little computing")
      .one_of({"cnn", "mlp"});
  line.add("--width", options.width, "Units in a layer of the mlp")
      .between(1, 1 << 20);
  line.add("--lr", options.learning_rate, "Learning rate").above_zero();
  line.add("--momentum", options.momentum, "Momentum of SGD").between(0, 1);
}

DigitsTraining::DigitsTraining(const DigitsTrainingOptions& options,
                               const std::vector<torch::Device>& devices)
    : options_(options),
      devices_(devices),
      dataset_(load_digits(find_digits())),
      order_(shuffle(dataset_, options.batch_size)),
      meter_(std::make_shared<MemoryMeter>(devices.size() + 1)),
      network_(make_network(0)),
      optimizer_(network_->parameters(),
                 torch::optim::SGDOptions(options.learning_rate)
                     .momentum(options.momentum)) {}

std::shared_ptr<Classifier> DigitsTraining::make_network(size_t device) const {
  const auto shape = dataset_.train.shape();
  std::shared_ptr<Classifier> network;
  if (options_.model == "mlp") {
    network = std::make_shared<Mlp>(shape, options_.width, dataset_.classes);
  } else {
    network = std::make_shared<SmallCnn>(shape, dataset_.classes);
  }
  network->to(devices_.at(device));
  return std::make_shared<Metered>(std::move(network), meter_, device);
}

DigitsTraining::Batch DigitsTraining::batch(int64_t step) {
  const auto order = order_.accessor<int64_t, 1>();
  std::vector<size_t> indices;
  for (int64_t i = 0; i < options_.batch_size; ++i) {
    const int64_t place = (step * options_.batch_size + i) % order.size(0);
    indices.push_back(static_cast<size_t>(order[place]));
  }
  return dataset_.train.get_batch(indices);
}

double DigitsTraining::step(const Forward& forward,
                            const Batch& batch,
                            double weight) {
  const auto images = batch.data.to(devices_.front());
  const auto labels = batch.target.to(devices_.front());
  wait_for_devices();
  const Stopwatch time;
  optimizer_.zero_grad();
  loss_of(forward, images, labels, weight).backward();
  optimizer_.step();
  wait_for_devices();
  return time.seconds();
}

double DigitsTraining::metered_step(const Forward& forward,
                                    const Batch& batch,
                                    double weight) {
  meter_->start();
  const double seconds = step(forward, batch, weight);
  meter_->stop();
  return seconds;
}

torch::Tensor DigitsTraining::loss_of(const Forward& forward,
                                      const torch::Tensor& images,
                                      const torch::Tensor& labels,
                                      double weight) {
  const size_t results = devices_.size();
  const MemoryMeter::Scope scope(*meter_, results);
  const auto scores = forward(images);
  meter_->move(scores, results);
  const auto loss = torch::cross_entropy_loss(scores, labels) * weight;
  if (meter_->is_counting()) {
    live_ = meter_->live();
  }
  return loss;
}

// Blocks until the GPUs have finished all queued work.
void DigitsTraining::wait_for_devices() const {
  for (const auto device : devices_) {
    synchronize(device);
  }
}

}  // namespace ddp::bench
