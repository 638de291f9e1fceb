#include "dp/data_parallel/data_parallel.h"

#include <atomic>

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "dp/data_parallel/detail/devices.h"
#include "dp/data_parallel/detail/gpu.h"
#include "dp/data_parallel/detail/replica_threads.h"
#include "dp/data_parallel/detail/replicas.h"
#include "dp/data_parallel/detail/scatter.h"

namespace dp {

using detail::ForwardCall;
using detail::Part;
using Devices = std::vector<torch::Device>;

namespace detail {

struct DataParallelState {
  explicit DataParallelState(DataParallelOptions given)
      : options(std::move(given)),
        devices(resolve_devices(options.devices(), look_up_devices)),
        traffic(std::make_shared<std::vector<TrafficCounter>>(devices.size())),
        threads(devices) {
    if (options.output_device()) {
      output_device = resolve_device(*options.output_device(), look_up_devices);
    } else if (!devices.empty()) {
      output_device = devices.front();
    }
    check_chunk_sizes(options.chunk_sizes(), devices.size());
    TORCH_CHECK(options.aggregate(),
                "Expected a function to aggregate results, but got none");
    if (const auto warning = warn_of_imbalance(gpu_capacities(devices))) {
      TORCH_WARN_ONCE(*warning);
    }
  }

  DataParallelOptions options;
  Devices devices;
  torch::Device output_device = torch::kCPU;
  TrafficCounters traffic;
  ReplicaThreads threads;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<Replicas> replicas;  // null if there are no devices
  std::atomic<bool> is_busy{false};
};

}  // namespace detail

namespace {

using detail::DataParallelState;

/// Claims the replicas for one forward while it exists. There is only one set
/// of replicas, so a nested or concurrent forward would overwrite them.
class ForwardLock {
 public:
  explicit ForwardLock(DataParallelState& state) : state_(state) {
    state_.threads.expect_own_process();
    TORCH_CHECK(
        is_shared() || !state_.is_busy.exchange(true),
        "Expected one forward of a DataParallel at a time, but got "
        "another while one runs: from the module's own forward, or from "
        "a second thread; call it when that one has returned, or give "
        "each thread a wrapper of its own");
  }
  ~ForwardLock() {
    if (!is_shared()) {
      state_.is_busy = false;
    }
  }
  ForwardLock(const ForwardLock&) = delete;
  ForwardLock& operator=(const ForwardLock&) = delete;

 private:
  /// The module is called directly; concurrent calls are up to the module.
  bool is_shared() const { return state_.devices.size() < 2; }

  DataParallelState& state_;
};

void check_not_nested(const torch::nn::Module& module, const Devices& devices) {
  for (const auto& item : module.named_modules()) {
    TORCH_CHECK(devices.size() < 2 || !item.value()->as<DataParallelBase>(),
                "Expected a module without a DataParallel inside for ",
                devices.size(),
                " devices, but got one: ",
                item.key(),
                "; wrap the whole module once");
  }
}

std::vector<size_t> replicas_of(const std::vector<Part>& parts) {
  std::vector<size_t> replicas;
  for (const auto& part : parts) {
    replicas.push_back(part.replica);
  }
  return replicas;
}

/// Returns the parts of the batch, after updating the replicas that compute
/// them.
std::vector<Part> split(DataParallelState& state, ForwardCall& call) {
  const auto inputs = call.inputs();
  if (!state.replicas) {
    call.split({inputs});
    return {Part{0, 0, inputs}};
  }
  auto parts = detail::scatter(
      inputs, state.devices, state.options.chunk_sizes(), state.options.dim());
  std::vector<std::vector<torch::Tensor>> chunks;
  for (auto& part : parts) {
    (*state.traffic)[part.replica].inputs += detail::bytes_of(part.tensors);
    chunks.push_back(std::move(part.tensors));
  }
  state.replicas->refresh(replicas_of(parts));
  call.split(chunks);
  return parts;
}

void compute(DataParallelState& state,
             const std::vector<Part>& parts,
             ForwardCall& call) {
  if (state.devices.size() < 2) {
    const c10::OptionalDeviceGuard guard(
        state.devices.empty() || state.devices[0].is_cpu()
            ? std::nullopt
            : std::optional<c10::Device>(state.devices[0]));
    call.run(0, *state.module);
    return;
  }
  std::vector<size_t> part_of(state.devices.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    part_of[parts[i].replica] = i;
  }
  state.threads.run(replicas_of(parts), [&](size_t replica) {
    call.run(part_of[replica], (*state.replicas)[replica]);
  });
  if (parts.size() > 1) {
    state.replicas->check_nothing_registered();
  }
}

torch::Tensor aggregated(DataParallelState& state,
                         const std::vector<Part>& parts,
                         const std::vector<torch::Tensor>& tensors) {
  if (state.devices.size() < 2) {
    return detail::to_device(tensors.front(), state.output_device);
  }
  Parts result;
  result.dim = state.options.dim();
  for (size_t i = 0; i < parts.size(); ++i) {
    (*state.traffic)[parts[i].replica].outputs += detail::bytes_of(tensors[i]);
    result.tensors.push_back(
        detail::to_device(tensors[i], state.output_device));
    result.samples.push_back(parts[i].samples);
  }
  return state.options.aggregate()(result);
}

/// Replaces each tensor of the first part's result by the aggregate over all
/// parts.
void gather(DataParallelState& state,
            const std::vector<Part>& parts,
            ForwardCall& call) {
  std::vector<torch::Tensor> gathered;
  for (const auto& tensors : detail::leaves_by_place(call.results())) {
    try {
      gathered.push_back(tensors.front().defined()
                             ? aggregated(state, parts, tensors)
                             : torch::Tensor());
    } catch (c10::Error& error) {
      error.add_context(
          c10::str("in tensor ", gathered.size(), " of the result"));
      throw;
    }
  }
  call.gather(gathered);
}

}  // namespace

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   DataParallelOptions options)
    : torch::nn::Module("DataParallel"),
      state_(std::make_unique<DataParallelState>(std::move(options))) {
  TORCH_CHECK(module != nullptr,
              "Expected a module to wrap, but got an empty holder");
  check_not_nested(*module, state_->devices);
  state_->module = register_module("module", std::move(module));
  if (!state_->devices.empty()) {
    state_->replicas =
        std::make_unique<detail::Replicas>(state_->module,
                                           state_->devices,
                                           state_->options.make_replica(),
                                           state_->traffic);
  }
}

DataParallelBase::~DataParallelBase() = default;

const std::vector<torch::Device>& DataParallelBase::devices() const {
  return state_->devices;
}

torch::Device DataParallelBase::output_device() const {
  return state_->output_device;
}

void DataParallelBase::clone_(torch::nn::Module& /*other*/,
                              const std::optional<torch::Device>& /*device*/) {
  TORCH_CHECK(false,
              "Expected clone() of a module without a DataParallel inside, but "
              "got one with it; clone the inner module, then wrap it");
}

std::vector<ReplicaTraffic> DataParallelBase::traffic() const {
  std::vector<ReplicaTraffic> result;
  for (size_t i = 0; i < state_->devices.size(); ++i) {
    const auto& counter = (*state_->traffic)[i];
    result.push_back({state_->devices[i],
                      counter.state,
                      counter.inputs,
                      counter.outputs,
                      counter.gradients});
  }
  return result;
}

void DataParallelBase::reset_traffic() {
  for (auto& counter : *state_->traffic) {
    counter.state = 0;
    counter.inputs = 0;
    counter.outputs = 0;
    counter.gradients = 0;
  }
}

void DataParallelBase::remake_replicas() {
  if (state_->replicas) {
    const ForwardLock turn(*state_);
    state_->replicas->remake();
  }
}

void DataParallelBase::save(torch::serialize::OutputArchive& archive) const {
  state_->module->save(archive);
}

void DataParallelBase::load(torch::serialize::InputArchive& archive) {
  state_->module->load(archive);
}

void DataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "dp::DataParallel(devices=[" << c10::Join(", ", devices())
         << "], output_device=" << output_device() << ")";
}

void DataParallelBase::run(ForwardCall& call) {
  const ForwardLock turn(*state_);
  const auto parts = split(*state_, call);
  compute(*state_, parts, call);
  gather(*state_, parts, call);
}

void DataParallelBase::run_each(ForwardCall& call) {
  const ForwardLock turn(*state_);
  compute(*state_, split(*state_, call), call);
}

}  // namespace dp
