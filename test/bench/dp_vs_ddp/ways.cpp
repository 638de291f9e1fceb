#include "test/bench/dp_vs_ddp/ways.h"

#include <ddp/ddp.h>

#include "samples/support/devices.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/socket_bytes.h"
#include "test/bench/dp_vs_ddp/module_bytes.h"
#include "test/support/counting_backend.h"

namespace ddp::bench {

using namespace samples;

namespace {

// Makes a step of either model.
template <typename Model>
double make_step(DigitsTraining& training,
                 Model& model,
                 int64_t number,
                 const DigitsTraining::Batch& batch,
                 double weight) {
  const auto forward = [&](const auto& images) {
    return model->forward(images);
  };
  return number == kWarmUps - 1 ? training.metered_step(forward, batch, weight)
                                : training.step(forward, batch, weight);
}

// Returns the chunk of the batch that DataParallel gives to the replica with
// this rank's number, and the weight of the chunk. DDP averages the ranks'
// gradients equally, so a smaller chunk has a smaller weight.
std::pair<DigitsTraining::Batch, double> part_of(
    const DigitsTraining::Batch& batch) {
  const int64_t ranks = ddp::world_size();
  const auto rank = static_cast<size_t>(ddp::rank());
  DigitsTraining::Batch part{batch.data.chunk(ranks)[rank],
                             batch.target.chunk(ranks)[rank]};
  const double share = static_cast<double>(part.data.size(0)) /
                       static_cast<double>(batch.data.size(0));
  return {std::move(part), share * static_cast<double>(ranks)};
}

}  // namespace

bool has_gpus(const WaysOptions& options) {
  return !options.no_cuda && gpu_count() >= options.replicas;
}

DataParallelWay::DataParallelWay(const WaysOptions& options,
                                 const std::vector<torch::Device>& devices)
    : steps_(options.steps),
      training_(options.training, devices),
      replicas_{training_.network()},
      model_(training_.network(),
             dp::DataParallelOptions().devices(devices).make_replica(
                 [this] { return add_replica(); })) {}

double DataParallelWay::step(int64_t number) {
  if (number == kWarmUps) {
    model_->reset_traffic();
  }
  return make_step(training_, model_, number, training_.batch(number), 1);
}

std::vector<DeviceCosts> DataParallelWay::costs() const {
  auto rows = dp_costs(model_->traffic(), steps_);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].parameters = state_bytes(*replicas_[i]);
    rows[i].gradient_storage = gradient_bytes(*replicas_[i]);
    rows[i].activations = training_.activation_bytes(i);
  }
  rows[0].optimizer_state = state_bytes(training_.optimizer());
  rows[0].results = training_.result_bytes();
  return rows;
}

std::shared_ptr<Classifier> DataParallelWay::add_replica() {
  replicas_.push_back(training_.make_network(replicas_.size()));
  return replicas_.back();
}

DistributedWay::DistributedWay(const WaysOptions& options)
    : options_(options),
      training_(options.training, {ddp::local_device()}),
      counted_(c10::make_intrusive<ddp::test::CountingBackend>(
          ddp::process_group())),
      model_(training_.network(),
             ddp::DistributedDataParallelOptions().process_group(counted_)) {}

double DistributedWay::step(int64_t number) {
  if (number == kWarmUps) {
    broadcast_before_ = counted_->take().broadcast;
  }
  const auto [part, weight] = part_of(training_.batch(number));
  ddp::barrier();
  const int64_t before = samples::socket_bytes_sent();
  const double seconds = make_step(training_, model_, number, part, weight);
  ddp::barrier();  // all data have been sent
  if (number >= kWarmUps) {
    sent_by_sockets_ += samples::socket_bytes_sent() - before;
  }
  return seconds;
}

RankReport DistributedWay::report() {
  const auto bytes = counted_->take();
  DeviceCosts costs;
  costs.way = Way::ddp;
  costs.device = ddp::rank();
  costs.all_reduce = bytes.all_reduce / options_.steps;
  costs.sent = ring_bytes(costs.all_reduce, ddp::world_size());
  costs.received = costs.sent;
  costs.parameters = state_bytes(*training_.network());
  costs.gradient_storage = gradient_bytes(*training_.network());
  costs.optimizer_state = state_bytes(training_.optimizer());
  costs.activations = training_.activation_bytes(0);
  costs.results = training_.result_bytes();
  return {costs,
          sent_by_sockets_ / options_.steps,
          bytes.broadcast / options_.steps,
          broadcast_before_,
          parameter_hash(*training_.network())};
}

}  // namespace ddp::bench
