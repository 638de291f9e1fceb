#include "dp/data_parallel.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "dp/detail/data_parallel/devices.h"
#include "dp/detail/data_parallel/gpu.h"
#include "dp/detail/data_parallel/replica_runner.h"
#include "dp/detail/data_parallel/replicas.h"

namespace dp {
namespace {

using detail::Part;
using Devices = std::vector<torch::Device>;

torch::Device choose_output_device(const DataParallelOptions& options,
                                   const Devices& devices) {
  if (options.output_device()) {
    return detail::resolve_device(*options.output_device(),
                                  detail::count_devices);
  }
  return devices.empty() ? torch::Device(torch::kCPU) : devices.front();
}

std::vector<size_t> replicas_of(const std::vector<Part>& parts) {
  std::vector<size_t> replicas;
  for (const auto& part : parts) {
    replicas.push_back(part.replica);
  }
  return replicas;
}

/// Brings results to the output device.
class Mover : public detail::TensorGatherer {
 public:
  explicit Mover(torch::Device device) : device_(device) {}
  torch::Tensor gather(const std::vector<torch::Tensor>& tensors) override {
    return detail::to_device(tensors.front(), device_);
  }

 private:
  torch::Device device_;
};

/// Aggregates results on the output device.
class Aggregator : public detail::TensorGatherer {
 public:
  Aggregator(const DataParallelOptions& options,
             torch::Device device,
             const std::vector<Part>& parts,
             detail::TrafficCounters traffic)
      : options_(options),
        device_(device),
        replicas_(replicas_of(parts)),
        traffic_(std::move(traffic)) {
    for (const auto& part : parts) {
      samples_.push_back(part.samples);
    }
  }

  torch::Tensor gather(const std::vector<torch::Tensor>& tensors) override {
    Parts parts{{}, samples_, options_.dim()};
    for (size_t i = 0; i < tensors.size(); ++i) {
      (*traffic_)[replicas_[i]].outputs += detail::bytes_of(tensors[i]);
      parts.tensors.push_back(detail::to_device(tensors[i], device_));
    }
    return options_.aggregate()(parts);
  }

 private:
  const DataParallelOptions& options_;
  torch::Device device_;
  std::vector<size_t> replicas_;
  std::vector<int64_t> samples_;
  detail::TrafficCounters traffic_;
};

}  // namespace

namespace detail {

class DataParallelState {
 public:
  explicit DataParallelState(DataParallelOptions options)
      : options_(std::move(options)),
        devices_(resolve_devices(options_.devices(), count_devices)),
        output_device_(choose_output_device(options_, devices_)),
        rule_{
            devices_.size(), options_.chunk_sizes(), options_.chunk_weights()},
        traffic_(
            std::make_shared<std::vector<TrafficCounter>>(devices_.size())),
        runner_(devices_) {
    check(rule_);
    TORCH_CHECK(options_.aggregate(),
                "Expected a function to aggregate results, but got none");
    if (const auto warning = warn_of_imbalance(gpu_capacities(devices_))) {
      TORCH_WARN(*warning);
    }
  }

  const Devices& devices() const { return devices_; }
  torch::Device output_device() const { return output_device_; }
  const TrafficCounters& traffic() const { return traffic_; }

  void replicate(std::shared_ptr<torch::nn::Module> module) {
    module_ = module.get();
    if (!devices_.empty()) {
      std::vector<ReplicaSpec> specs;
      for (const auto device : devices_) {
        specs.push_back({device, device != devices_.front()});
      }
      replicas_ = std::make_unique<Replicas>(std::move(module),
                                             std::move(specs),
                                             options_.make_replica(),
                                             traffic_);
    }
  }

  void remake() {
    if (replicas_) {
      replicas_->remake();
    }
  }

  std::vector<Part> begin_forward(const std::vector<torch::Tensor>& tensors) {
    if (!replicas_) {
      return {Part{0, 0, tensors}};
    }
    auto parts = scatter(tensors, devices_, rule_, options_.dim());
    for (const auto& part : parts) {
      (*traffic_)[part.replica].inputs += bytes_of(part.tensors);
    }
    replicas_->refresh(replicas_of(parts));
    return parts;
  }

  void run(const std::vector<Part>& parts, const ForwardJob& job) {
    if (devices_.size() < 2) {
      const c10::OptionalDeviceGuard guard(
          devices_.empty() || devices_[0].is_cpu()
              ? std::nullopt
              : std::optional<c10::Device>(devices_[0]));
      job(0, *module_);
      return;
    }
    std::vector<size_t> part_of(devices_.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      part_of[parts[i].replica] = i;
    }
    runner_.run(replicas_of(parts), [&](size_t replica) {
      job(part_of[replica], (*replicas_)[replica]);
    });
  }

  std::unique_ptr<TensorGatherer> gatherer(
      const std::vector<Part>& parts) const {
    if (devices_.size() < 2) {
      return std::make_unique<Mover>(output_device_);
    }
    return std::make_unique<Aggregator>(
        options_, output_device_, parts, traffic_);
  }

 private:
  DataParallelOptions options_;
  Devices devices_;
  torch::Device output_device_;
  SplitRule rule_;
  TrafficCounters traffic_;
  torch::nn::Module* module_ = nullptr;
  std::unique_ptr<Replicas> replicas_;  // null without devices
  ReplicaRunner runner_;
};

}  // namespace detail

DataParallelBase::DataParallelBase(DataParallelOptions options)
    : torch::nn::Module("DataParallel"),
      state_(std::make_unique<detail::DataParallelState>(std::move(options))) {}

DataParallelBase::~DataParallelBase() = default;

const std::vector<torch::Device>& DataParallelBase::devices() const {
  return state_->devices();
}

torch::Device DataParallelBase::output_device() const {
  return state_->output_device();
}

std::vector<ReplicaTraffic> DataParallelBase::traffic() const {
  std::vector<ReplicaTraffic> result;
  for (size_t i = 0; i < state_->devices().size(); ++i) {
    const auto& counter = (*state_->traffic())[i];
    result.push_back({state_->devices()[i],
                      counter.state,
                      counter.inputs,
                      counter.outputs,
                      counter.gradients});
  }
  return result;
}

void DataParallelBase::reset_traffic() {
  for (auto& counter : *state_->traffic()) {
    counter.state = 0;
    counter.inputs = 0;
    counter.outputs = 0;
    counter.gradients = 0;
  }
}

void DataParallelBase::remake_replicas() {
  state_->remake();
}

void DataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "dp::DataParallel(devices=[" << c10::Join(", ", devices())
         << "], output_device=" << output_device() << ")";
}

void DataParallelBase::replicate(std::shared_ptr<torch::nn::Module> module) {
  state_->replicate(std::move(module));
}

std::vector<detail::Part> DataParallelBase::begin_forward(
    const std::vector<torch::Tensor>& tensors) {
  return state_->begin_forward(tensors);
}

void DataParallelBase::run(const std::vector<detail::Part>& parts,
                           const detail::ForwardJob& job) {
  state_->run(parts, job);
}

std::unique_ptr<detail::TensorGatherer> DataParallelBase::gatherer(
    const std::vector<detail::Part>& parts) const {
  return state_->gatherer(parts);
}

}  // namespace dp
