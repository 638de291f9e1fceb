#include "ddp/detail/checkpoint/rng_state.h"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "ddp/detail/checkpoint/pickle/dict_reader.h"
#include "ddp/detail/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";

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
              "its random state is not one of this LibTorch");
}

}  // namespace

std::string rng_bytes(std::optional<c10::Device> gpu) {
  std::string bytes = to_bytes(get(at::detail::getDefaultCPUGenerator()));
  return gpu ? bytes + to_bytes(get(gpu_generator(*gpu))) : bytes;
}

c10::IValue rng_value(const std::string& bytes) {
  const auto cpu_size =
      static_cast<size_t>(at::detail::createCPUGenerator().get_state().numel());
  const auto cuda = bytes.substr(cpu_size);
  auto dict = new_dict();
  dict.toGenericDict().insert(kCpu, to_tensor(bytes.substr(0, cpu_size)));
  dict.toGenericDict().insert(
      kCuda, cuda.empty() ? c10::IValue() : c10::IValue(to_tensor(cuda)));
  return dict;
}

void check_rng(const c10::IValue& value, std::optional<c10::Device> gpu) {
  const DictReader saved(value, "random state");
  auto probe = at::detail::createCPUGenerator();
  check_size(saved.tensor(kCpu), probe.get_state());
  probe.set_state(saved.tensor(kCpu));
  if (gpu && saved.has_value(kCuda)) {
    check_size(saved.tensor(kCuda), get(gpu_generator(*gpu)));
  }
}

void restore_rng(const c10::IValue& value, std::optional<c10::Device> gpu) {
  const DictReader saved(value, "random state");
  set(at::detail::getDefaultCPUGenerator(), saved.tensor(kCpu));
  if (gpu && saved.has_value(kCuda)) {
    set(gpu_generator(*gpu), saved.tensor(kCuda));
  }
}

}  // namespace ddp::detail
