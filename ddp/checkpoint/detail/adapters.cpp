#include "ddp/checkpoint/detail/adapters.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "ddp/checkpoint/checkpoint.h"
#include "ddp/checkpoint/detail/sharded_state.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/job/backends.h"
#include "ddp/tensors/generator_states.h"

namespace ddp::detail {
namespace {

using c10::IValue;

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";
constexpr const char* kNotOurs = "its random state is not one of this LibTorch";

void check_size(const at::Tensor& saved, const at::Tensor& mine) {
  TORCH_CHECK(saved.scalar_type() == at::kByte &&
                  saved.sizes() == mine.sizes() && saved.is_contiguous() &&
                  !saved.is_neg(),
              kNotOurs);
}

/// The parameters and buffers of a module.
class ModuleState : public Stateful {
 public:
  explicit ModuleState(std::shared_ptr<torch::nn::Module> module)
      : module_(std::move(module)) {}

  IValue state_dict() const override {
    auto values = new_dict();
    for (const auto& item : ddp::state_dict(*module_)) {
      values.toGenericDict().insert(item.key(), whole_parameter(item.value()));
    }
    return values;
  }
  void check_state_dict(const IValue& state) const override {
    detail::check_state_dict(*module_, to_state_dict(state));
  }
  void load_state_dict(const IValue& state) override {
    ddp::load_state_dict(*module_, to_state_dict(state));
  }

 private:
  const std::shared_ptr<torch::nn::Module> module_;
};

/// The state of one of LibTorch's optimizers.
class OptimizerState : public Stateful {
 public:
  explicit OptimizerState(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {}

  IValue state_dict() const override {
    return optimizer_to_value(optimizer_, whole_state);
  }
  void check_state_dict(const IValue& state) const override {
    check_optimizer(optimizer_, state, own_part);
  }
  void load_state_dict(const IValue& state) override {
    load_optimizer(optimizer_, state, own_part);
  }

 private:
  torch::optim::Optimizer& optimizer_;
};

/// A variable of the program.
template <class Type>
class Variable : public Stateful {
 public:
  Variable(std::string name, Type& variable, CheckpointScope scope)
      : name_(std::move(name)), variable_(variable), scope_(scope) {}

  IValue state_dict() const override {
    if constexpr (kIsTensor) {
      return variable_.defined() ? IValue(variable_.detach().cpu()) : IValue();
    } else {
      return variable_;
    }
  }
  void check_state_dict(const IValue& state) const override { read(state); }
  void load_state_dict(const IValue& state) override {
    auto value = read(state);
    if constexpr (kIsTensor) {
      if (value.defined() && variable_.defined()) {
        const c10::NoGradGuard no_grad;
        variable_.copy_(value);
        return;
      }
    }
    variable_ = std::move(value);
  }
  CheckpointScope checkpoint_scope() const override { return scope_; }

 private:
  static constexpr bool kIsTensor = std::is_same_v<Type, at::Tensor>;

  Type read(const IValue& state) const {
    auto dict = new_dict();
    dict.toGenericDict().insert(name_, state);
    const DictReader saved(dict, "checkpoint");
    if constexpr (std::is_same_v<Type, bool>) {
      return saved.boolean(name_);
    } else if constexpr (std::is_same_v<Type, int64_t>) {
      return saved.integer(name_);
    } else if constexpr (std::is_same_v<Type, double>) {
      return saved.number(name_);
    } else if constexpr (std::is_same_v<Type, std::string>) {
      TORCH_CHECK(state.isString(),
                  "expected a text as its checkpoint[\"",
                  name_,
                  "\"], but got ",
                  describe(state));
      return state.toStringRef();
    } else {
      return read_tensor(saved);
    }
  }

  /// Returns an undefined tensor if None was saved.
  at::Tensor read_tensor(const DictReader& saved) const {
    if (!saved.has_value(name_)) {
      return {};
    }
    const auto value = saved.tensor(name_);
    if (!variable_.defined()) {
      // Also in the check: memory for a file's expanded tensor may be missing.
      return value.clone();
    }
    TORCH_CHECK(value.sizes() == variable_.sizes() &&
                    value.scalar_type() == variable_.scalar_type(),
                "expected ",
                variable_.scalar_type(),
                variable_.sizes(),
                " as its checkpoint[\"",
                name_,
                "\"], but got ",
                value.scalar_type(),
                value.sizes());
    return value;
  }

  std::string name_;
  Type& variable_;
  CheckpointScope scope_;
};

}  // namespace

std::shared_ptr<Stateful> module_state(
    std::shared_ptr<torch::nn::Module> module) {
  TORCH_CHECK(module != nullptr, "Expected a module, but got none");
  return std::make_shared<ModuleState>(std::move(module));
}

std::shared_ptr<Stateful> borrowed(Stateful& object) {
  return {std::shared_ptr<void>(), &object};
}

std::shared_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer) {
  if (auto* own = dynamic_cast<Stateful*>(&optimizer)) {
    return borrowed(*own);
  }
  return std::make_shared<OptimizerState>(optimizer);
}

template <class Type>
std::shared_ptr<Stateful> variable_state(const std::string& name,
                                         Type& variable,
                                         CheckpointScope scope) {
  return std::make_shared<Variable<Type>>(name, variable, scope);
}

template std::shared_ptr<Stateful> variable_state(const std::string& name,
                                                  bool& variable,
                                                  CheckpointScope scope);
template std::shared_ptr<Stateful> variable_state(const std::string& name,
                                                  int64_t& variable,
                                                  CheckpointScope scope);
template std::shared_ptr<Stateful> variable_state(const std::string& name,
                                                  double& variable,
                                                  CheckpointScope scope);
template std::shared_ptr<Stateful> variable_state(const std::string& name,
                                                  std::string& variable,
                                                  CheckpointScope scope);
template std::shared_ptr<Stateful> variable_state(const std::string& name,
                                                  at::Tensor& variable,
                                                  CheckpointScope scope);

RngState::RngState(const std::vector<const torch::nn::Module*>& modules) {
  std::set<c10::DeviceIndex> own;
  for (const auto* module : modules) {
    for (const auto& parameter : module->parameters()) {
      if (parameter.is_cuda()) {
        own.insert(parameter.device().index());
      }
    }
  }
  for (const auto index : own) {
    gpus_.emplace_back(c10::kCUDA, index);
  }
  // A replica of a DataParallel may draw on a GPU without parameters.
  const int count = own.empty() ? 0 : nccl_device_count();
  for (int index = 0; index < count; ++index) {
    if (own.count(static_cast<c10::DeviceIndex>(index)) == 0) {
      gpus_.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    }
  }
}

c10::IValue RngState::state_dict() const {
  auto states = new_list();
  for (const auto& gpu : gpus_) {
    states.toList().push_back(generator_state(gpu));
  }
  auto dict = new_dict();
  dict.toGenericDict().insert(kCpu, generator_state(c10::kCPU));
  dict.toGenericDict().insert(kCuda, states);
  return dict;
}

void RngState::check_state_dict(const c10::IValue& state) const {
  const DictReader saved(state, "random state");
  auto probe = at::detail::createCPUGenerator();
  check_size(saved.tensor(kCpu), probe.get_state());
  probe.set_state(saved.tensor(kCpu));
  const auto states = saved.list(kCuda);
  for (size_t i = 0; i < std::min(gpus_.size(), states.size()); ++i) {
    TORCH_CHECK(states[i].isTensor(), kNotOurs);
    check_size(states[i].toTensor(), generator_state(gpus_[i]));
  }
}

void RngState::load_state_dict(const c10::IValue& state) {
  const DictReader saved(state, "random state");
  set_generator_state(c10::kCPU, saved.tensor(kCpu));
  const auto states = saved.list(kCuda);
  for (size_t i = 0; i < std::min(gpus_.size(), states.size()); ++i) {
    set_generator_state(gpus_[i], states[i].toTensor());
  }
}

}  // namespace ddp::detail
