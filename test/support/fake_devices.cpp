#include "test/support/fake_devices.h"

#include <cstdlib>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/library.h>

namespace ddp::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
using Guard = c10::impl::FakeGuardImpl<kType>;
static_assert(kFakeDevices == c10::impl::kFakeGuardImplMaxDevices);

/// Allocates memory of the current device.
class Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = size > 0 ? std::malloc(size) : nullptr;
    return {data, data, &std::free, Guard().getDevice()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

Allocator& allocator() {
  static Allocator instance;
  return instance;
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device,
                 std::optional<bool> /*pin_memory*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Guard().getDevice()));
  return at::detail::empty_generic(
      sizes, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes,
                         at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device,
                         std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(device.value_or(Guard().getDevice()));
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

/// Returns a CPU tensor over the same memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(tensor.data_ptr(),
                                         tensor.sizes(),
                                         tensor.strides(),
                                         tensor.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& from,
                     const at::Tensor& to,
                     bool /*non_blocking*/) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    const auto fresh = at::empty(from.sizes(), to.options());
    to.set_(fresh.storage(), 0, fresh.sizes(), fresh.strides());
  }
  return copy_from(from, to, false);
}

void check_same_device(const at::Tensor& tensor,
                       std::optional<c10::Device>& device) {
  if (tensor.defined() && tensor.device().type() == kType) {
    TORCH_CHECK(tensor.device() == device.value_or(tensor.device()),
                "Expected all tensors on one device, but got ",
                *device,
                " and ",
                tensor.device());
    device = tensor.device();
  }
}

void compute_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::optional<c10::Device> device;
  const auto count = op.schema().arguments().size();
  for (const auto& argument : torch::jit::last(*stack, count)) {
    if (argument.isTensor()) {
      check_same_device(argument.toTensor(), device);
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        check_same_device(tensor, device);
      }
    }
  }
  at::native::cpu_fallback(op, stack);
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
};

/// Without the hooks, autograd would use the GPU streams of a CUDA build.
[[maybe_unused]] const bool kIsRegistered = [] {
  static Hooks hooks;
  c10::SetAllocator(kType, &allocator());
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("set_.source_Storage_storage_offset",
               &at::native::set_storage_cpu_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(
      torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

std::vector<at::Tensor> all_on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(on_cpu(tensor));
  }
  return result;
}

}  // namespace

FakeDeviceBackend::Work FakeDeviceBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto memory = all_on_cpu(tensors);
  return inner().broadcast(memory, options);
}

FakeDeviceBackend::Work FakeDeviceBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto memory = all_on_cpu(tensors);
  return inner().allreduce(memory, options);
}

FakeDeviceBackend::Work FakeDeviceBackend::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  TensorLists memory;
  for (const auto& output : outputs) {
    memory.push_back(all_on_cpu(output));
  }
  auto sent = all_on_cpu(inputs);
  return inner().allgather(memory, sent, options);
}

FakeDeviceBackend::Work FakeDeviceBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  auto received = on_cpu(output);
  auto sent = on_cpu(input);
  return inner()._allgather_base(received, sent, options);
}

FakeDeviceBackend::Work FakeDeviceBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  auto received = on_cpu(output);
  auto sent = on_cpu(input);
  return inner().alltoall_base(
      received, sent, output_sizes, input_sizes, options);
}

c10::Device fake_device(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace ddp::test
