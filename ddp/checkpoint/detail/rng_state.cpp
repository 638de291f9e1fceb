#include "ddp/checkpoint/detail/rng_state.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/backends.h"

namespace ddp::detail {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";
constexpr const char* kNotOurs = "its random state is not one of this LibTorch";
// Size of LibTorch's state of a GPU generator: a seed and an offset.
constexpr size_t kGpuStateSize = 2 * sizeof(uint64_t);

at::Tensor get(at::Generator generator) {
  std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set(at::Generator generator, const at::Tensor& state) {
  std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

at::Generator gpu_generator(c10::Device gpu) {
  return at::globalContext().defaultGenerator(gpu);
}

std::string to_bytes(const at::Tensor& state) {
  return {static_cast<const char*>(state.const_data_ptr()),
          static_cast<size_t>(state.numel())};
}

at::Tensor to_tensor(const std::string& bytes) {
  auto tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

void check_size(const at::Tensor& saved, const at::Tensor& mine) {
  TORCH_CHECK(saved.scalar_type() == at::kByte &&
                  saved.sizes() == mine.sizes() && saved.is_contiguous() &&
                  !saved.is_neg(),
              kNotOurs);
}

}  // namespace

std::vector<c10::Device> gpus_of(
    const std::vector<const torch::nn::Module*>& modules) {
  std::set<c10::DeviceIndex> own;
  for (const auto* module : modules) {
    if (module == nullptr) {
      continue;
    }
    for (const auto& parameter : module->parameters()) {
      if (parameter.is_cuda()) {
        own.insert(parameter.device().index());
      }
    }
  }
  std::vector<c10::Device> gpus;
  for (const auto index : own) {
    gpus.emplace_back(c10::kCUDA, index);
  }
  // A replica of a DataParallel may draw on a GPU without parameters.
  const int count = own.empty() ? 0 : nccl_device_count();
  for (int index = 0; index < count; ++index) {
    if (own.count(static_cast<c10::DeviceIndex>(index)) == 0) {
      gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    }
  }
  return gpus;
}

std::string rng_bytes(const std::vector<c10::Device>& gpus) {
  std::string bytes = to_bytes(get(at::detail::getDefaultCPUGenerator()));
  for (const auto& gpu : gpus) {
    bytes += to_bytes(get(gpu_generator(gpu)));
  }
  return bytes;
}

c10::IValue rng_value(const std::string& bytes) {
  const auto cpu_size =
      static_cast<size_t>(at::detail::createCPUGenerator().get_state().numel());
  auto gpus = new_list();
  for (size_t at = cpu_size; at < bytes.size(); at += kGpuStateSize) {
    gpus.toList().push_back(to_tensor(bytes.substr(at, kGpuStateSize)));
  }
  auto dict = new_dict();
  dict.toGenericDict().insert(kCpu, to_tensor(bytes.substr(0, cpu_size)));
  dict.toGenericDict().insert(kCuda, gpus);
  return dict;
}

void check_rng(const c10::IValue& value, const std::vector<c10::Device>& gpus) {
  const DictReader saved(value, "random state");
  auto probe = at::detail::createCPUGenerator();
  check_size(saved.tensor(kCpu), probe.get_state());
  probe.set_state(saved.tensor(kCpu));
  const auto states = saved.list(kCuda);
  for (size_t i = 0; i < std::min(gpus.size(), states.size()); ++i) {
    TORCH_CHECK(states[i].isTensor(), kNotOurs);
    check_size(states[i].toTensor(), get(gpu_generator(gpus[i])));
  }
}

void restore_rng(const c10::IValue& value,
                 const std::vector<c10::Device>& gpus) {
  const DictReader saved(value, "random state");
  set(at::detail::getDefaultCPUGenerator(), saved.tensor(kCpu));
  const auto states = saved.list(kCuda);
  for (size_t i = 0; i < std::min(gpus.size(), states.size()); ++i) {
    set(gpu_generator(gpus[i]), states[i].toTensor());
  }
}

}  // namespace ddp::detail
