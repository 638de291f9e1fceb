#include "ddp/graph/graphed_step.h"

#include <cstdlib>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/graph/detail/cuda_graph.h"
#include "ddp/job/error_text.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/optim/fused.h"
#include "ddp/reduce/reducer.h"
#include "ddp/tensors/streams.h"
#include "ddp/wrap/distributed_data_parallel_base.h"

namespace ddp {
namespace {

using Module = torch::nn::Module;

/// Shapes and dtypes of inputs.
using InputSpec = std::vector<std::pair<std::vector<int64_t>, c10::ScalarType>>;

InputSpec spec_of(const std::vector<at::Tensor>& inputs) {
  InputSpec spec;
  for (const auto& input : inputs) {
    spec.emplace_back(input.sizes().vec(), input.scalar_type());
  }
  return spec;
}

bool waits_on_host() {
  for (const char* name : {"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::string(value) != "0") {
      return true;
    }
  }
  return false;
}

c10::Device device_of(const Module& model) {
  std::optional<c10::Device> device;
  for (const auto& parameter : model.parameters()) {
    TORCH_CHECK(!device || *device == parameter.device(),
                "Expected a model on one device for a GraphedStep, but got "
                "parameters on ",
                device.value_or(c10::kCPU),
                " and ",
                parameter.device());
    device = parameter.device();
  }
  TORCH_CHECK(device,
              "Expected a model with parameters for a GraphedStep, but it has "
              "none");
  return *device;
}

c10::Stream side_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return device.is_cuda() ? guard.getStreamFromGlobalPool(device)
                          : guard.getStream(device);
}

}  // namespace

class GraphedStep::Impl {
 public:
  Impl(std::shared_ptr<Module> model,
       torch::optim::Optimizer& optimizer,
       LossFunction loss,
       int warmup)
      : model_(std::move(model)),
        wrapper_(dynamic_cast<DistributedDataParallelBase*>(model_.get())),
        optimizer_(optimizer),
        loss_(std::move(loss)),
        warmup_(warmup),
        device_(device_of(*model_)),
        stream_(side_stream(device_)) {
    detail::make_recorded_step(optimizer);  // refuses other optimizers
  }

  ~Impl() {
    try {
      reset();
    } catch (const std::exception&) {
      // CUDA has failed before.
    }
  }

  at::Tensor step(const Tensors& inputs) {
    const c10::DeviceGuard device(device_);
    const auto spec = spec_of(inputs);
    if (is_replay(spec) || (is_warm(spec) && record(inputs))) {
      return replay(inputs);
    }
    return step_eagerly(inputs);
  }

  bool is_recorded() const { return recording_ != nullptr; }
  const std::string& refusal() const { return refusal_; }

  void reset() {
    if (recording_) {
      // Memory returns to this object's stream, which must wait for launches.
      on_own_stream([this] { recording_.reset(); });
    }
    refusal_.clear();
    eager_steps_ = 0;
  }

 private:
  /// State of a submodule that a recording relies on.
  struct ModuleFacts {
    explicit ModuleFacts(std::shared_ptr<Module> described)
        : module(std::move(described)), is_training(module->is_training()) {
      auto own = module->parameters(/*recurse=*/false);
      for (const auto& buffer : module->buffers(/*recurse=*/false)) {
        own.push_back(buffer);
      }
      for (const auto& tensor : own) {
        tensors.emplace_back(
            tensor.has_storage() ? tensor.const_data_ptr() : nullptr,
            tensor.requires_grad());
      }
    }

    std::shared_ptr<Module> module;
    bool is_training;
    std::vector<std::pair<const void*, bool>> tensors;  ///< memory, trains
  };

  struct Recording {
    // The last member is destroyed first: the graph.
    Tensors inputs;
    InputSpec spec;
    std::vector<ModuleFacts> modules;
    std::shared_ptr<const detail::RecordedPass> pass;
    Tensors grads;  ///< of the optimizer's parameters
    at::Tensor loss;
    std::unique_ptr<detail::RecordedFusedStep> optimizer;
    std::unique_ptr<detail::CudaGraph> graph;
  };

  Reducer* reducer() const {
    return wrapper_ == nullptr ? nullptr : wrapper_->reducer_.get();
  }

  /// Whether the pass is local or in a `Join`, so that it is not recorded.
  bool is_special() const {
    return wrapper_ != nullptr &&
           (*wrapper_->pauses() > 0 || wrapper_->join() != nullptr);
  }

  /// Whether the recording is the step of this call.
  bool is_replay(const InputSpec& spec) {
    if (!recording_ || spec != recording_->spec || is_special()) {
      return false;
    }
    check_model();
    if (!recording_->optimizer->is_current()) {
      reset();
    }
    return recording_ != nullptr;
  }

  /// Whether this call is to be recorded.
  bool is_warm(const InputSpec& spec) {
    const bool is_repeated = std::exchange(last_spec_, spec) == spec;
    return !recording_ && eager_steps_ >= warmup_ && is_repeated &&
           !is_special() && refusal_.empty();
  }

  /// Calls `work` on the stream of this object, in order with the caller's.
  template <class Work>
  void on_own_stream(const Work& work) {
    const auto caller = detail::current_stream(device_);
    std::exception_ptr error;
    {
      const c10::StreamGuard guard(stream_);
      detail::join_stream(caller);
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
    }
    detail::join_stream(stream_);
    if (error) {
      std::rethrow_exception(error);
    }
  }

  at::Tensor step_eagerly(const Tensors& inputs) {
    at::Tensor loss;
    on_own_stream([&] {
      Tensors moved;
      for (const auto& input : inputs) {
        moved.push_back(input.detach().to(device_, /*non_blocking=*/true));
      }
      optimizer_.zero_grad();
      loss = loss_(moved);
      loss.backward();
      optimizer_.step();
    });
    // A local pass plans no buckets.
    eager_steps_ += is_special() ? 0 : 1;
    loss = loss.detach();
    detail::record_stream(loss);
    return loss;
  }

  std::string refuses_recording() const {
    if (!device_.is_cuda()) {
      return "Expected a model on a GPU, but got one on " + device_.str();
    }
    if (waits_on_host()) {
      return "Expected TORCH_NCCL_BLOCKING_WAIT to be unset, because the host "
             "waits for each collective with it, but it is set";
    }
    if (wrapper_ != nullptr) {
      if (auto why = wrapper_->refuses_recording(); !why.empty()) {
        return why;
      }
    }
    std::set<const c10::TensorImpl*> stepped;
    for_each_parameter([&](const at::Tensor& parameter) {
      stepped.insert(parameter.unsafeGetTensorImpl());
    });
    for (const auto& parameter : model_->named_parameters()) {
      if (parameter.value().requires_grad() &&
          stepped.count(parameter.value().unsafeGetTensorImpl()) == 0) {
        return "Expected the optimizer to have all parameters that train, but "
               "it does not have " +
               parameter.key() + "; freeze it";
      }
    }
    for (const auto& module : model_->modules()) {
      if (module != model_ &&
          dynamic_cast<DistributedDataParallelBase*>(module.get()) != nullptr) {
        return "Expected the " + module->name() +
               " itself as the model, but got a module around it";
      }
      if (module->as<SyncBatchNormImpl>() != nullptr && module->is_training()) {
        return "Expected no SyncBatchNorm in training mode, which reads a "
               "count on the host, but got one";
      }
    }
    return "";
  }

  void refuse(const std::string& why) {
    refusal_ = why;
    if (!why.empty()) {
      TORCH_WARN("ddp::GraphedStep makes every step eagerly: ", why);
    }
  }

  /// Records a step. Returns false if the step cannot be recorded.
  bool record(const Tensors& inputs) {
    refuse(refuses_recording());
    if (!refusal_.empty()) {
      return false;
    }
    auto next = std::make_unique<Recording>();
    next->spec = spec_of(inputs);
    for (const auto& input : inputs) {
      next->inputs.push_back(
          at::empty_like(input, input.options().device(device_)));
    }
    next->optimizer = detail::make_recorded_step(optimizer_);
    next->graph = detail::make_cuda_graph();
    on_own_stream([&] { capture(*next); });
    if (!refusal_.empty()) {
      return false;
    }
    for (const auto& module : model_->modules()) {
      next->modules.emplace_back(module);
    }
    for_each_parameter([&](const at::Tensor& parameter) {
      next->grads.push_back(parameter.grad());
    });
    recording_ = std::move(next);
    return true;
  }

  void capture(Recording& next) {
    optimizer_.zero_grad();
    if (reducer() != nullptr) {
      reducer()->begin_recording();
    }
    try {
      next.graph->begin();
      const auto loss = loss_(next.inputs);
      loss.backward();
      next.optimizer->record();
      next.loss = loss.detach();
      next.graph->end();
      if (reducer() != nullptr) {
        next.pass = reducer()->end_recording();
      }
    } catch (...) {
      next.graph->abandon();
      const auto text =
          detail::first_line(detail::text_of(std::current_exception()));
      if (reducer() != nullptr && !reducer()->end_recording(text)) {
        throw;
      }
      refuse(
          "Expected a step whose work CUDA can record, without a read of a "
          "value on the host (item(), cpu()) and with the same parameters as "
          "in the warm-up, but got: " +
          text);
    }
  }

  void check_model() const {
    for (const auto& before : recording_->modules) {
      const ModuleFacts now(before.module);
      TORCH_CHECK(
          now.is_training == before.is_training &&
              now.tensors == before.tensors,
          "Expected the model of the recorded step, but ",
          now.module->name(),
          " has another training mode, or a parameter or buffer with other "
          "memory or requires_grad (a load, set_data, a freeze); call reset() "
          "of the GraphedStep after such a change");
    }
  }

  at::Tensor replay(const Tensors& inputs) {
    auto& recording = *recording_;
    if (auto* progress = detail::progress_file(); progress && wrapper_) {
      progress->note_forward();
    }
    TORCH_CHECK((reducer() != nullptr) == (recording.pass != nullptr),
                "Expected the group of the recorded step, but the model has "
                "got another one; call reset() of the GraphedStep");
    for (size_t i = 0; i < inputs.size(); ++i) {
      recording.inputs[i].copy_(inputs[i].detach(), /*non_blocking=*/true);
    }
    recording.optimizer->before_replay();
    const auto launch = [&] { recording.graph->launch(); };
    if (recording.pass) {
      reducer()->replay(*recording.pass, launch);
    } else {
      launch();
    }
    recording.optimizer->after_replay();
    size_t i = 0;
    for_each_parameter([&](const at::Tensor& parameter) {
      parameter.mutable_grad() = recording.grads[i++];
    });
    return recording.loss;
  }

  template <class Work>
  void for_each_parameter(const Work& work) const {
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) {
        work(parameter);
      }
    }
  }

  const std::shared_ptr<Module> model_;
  DistributedDataParallelBase* const wrapper_;  // the model, or null
  torch::optim::Optimizer& optimizer_;
  const LossFunction loss_;
  const int warmup_;
  const c10::Device device_;
  const c10::Stream stream_;
  int eager_steps_ = 0;  // since the start or `reset`
  InputSpec last_spec_;
  std::string refusal_;
  std::unique_ptr<Recording> recording_;
};

GraphedStep::GraphedStep(std::shared_ptr<torch::nn::Module> model,
                         torch::optim::Optimizer& optimizer,
                         LossFunction loss,
                         const GraphedStepOptions& options) {
  TORCH_CHECK(model && loss,
              "Expected a model and a loss function for a GraphedStep, but got "
              "an empty ",
              model ? "function" : "model");
  TORCH_CHECK(options.warmup() >= 2,
              "Expected at least 2 steps of warm-up, because the first one "
              "allocates states and plans buckets, but got ",
              options.warmup());
  impl_ = std::make_unique<Impl>(
      std::move(model), optimizer, std::move(loss), options.warmup());
}

GraphedStep::~GraphedStep() = default;

at::Tensor GraphedStep::operator()(const Tensors& inputs) {
  return impl_->step(inputs);
}

bool GraphedStep::is_recorded() const {
  return impl_->is_recorded();
}

const std::string& GraphedStep::refusal() const {
  return impl_->refusal();
}

void GraphedStep::reset() {
  impl_->reset();
}

}  // namespace ddp
