#include "test/fake_gpu/ops/deferred.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

using at::Tensor;
using c10::IValue;
using Arguments = std::vector<IValue>;

/// Properties of an operator, from its schema.
struct Signature {
  explicit Signature(const c10::FunctionSchema& schema)
      : arguments(schema.arguments().size()) {
    const auto& returns = schema.returns();
    returns_bool = !returns.empty() &&
                   returns[0].type()->kind() == c10::TypeKind::BoolType;
    const bool may_alias =
        returns.empty() || returns[0].alias_info() != nullptr;
    for (size_t i = 0; i < arguments; ++i) {
      const auto& argument = schema.arguments()[i];
      const auto* alias = argument.alias_info();
      if (may_alias && alias != nullptr && alias->isWrite()) {
        written.push_back(i);
      }
      if (argument.name() == "generator") {
        generator = static_cast<int>(i);
      }
    }
    has_out = !written.empty() && schema.arguments().back().is_out();
    returns_written = !written.empty() && !returns.empty();
  }

  size_t arguments;
  std::vector<size_t> written;  // arguments that are also results
  int generator = -1;           // index of the argument; -1: none
  bool has_out = false;         // written arguments may need a resize
  bool returns_written = false;
  bool returns_bool = false;
};

/// Applies `function` to each tensor in a value, including tensors in lists.
template <typename Function>
IValue map_tensors(const IValue& value, const Function& function) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? IValue(function(value.toTensor()))
                                      : value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) {
      list.push_back(function(tensor));
    }
    return list;
  }
  if (value.isList() &&
      value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue& item : value.toListRef()) {
      list.push_back(item.isNone()
                         ? std::optional<Tensor>()
                         : std::optional<Tensor>(function(item.toTensor())));
    }
    return list;
  }
  if (value.isDevice()) {
    return IValue(c10::Device(c10::kCPU));
  }
  return value;
}

template <typename Function>
Arguments map_tensors(const Arguments& list, const Function& function) {
  Arguments result;
  for (const IValue& value : list) {
    result.push_back(map_tensors(value, function));
  }
  return result;
}

c10::TensorOptions on_host(const Tensor& tensor) {
  return tensor.options().device(c10::kCPU).requires_grad(false);
}

/// Returns a host tensor over the device's own memory, for use when the stream
/// executes the operation.
Tensor host_alias(const Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return tensor.detach().clone();
  }
  auto* data = static_cast<char*>(tensor.mutable_data_ptr());
  const int device = device_of(data);
  if (device >= 0 && device != tensor.device().index()) {
    fail("a tensor on " + tensor.device().str() +
         " lies in the memory of device " + std::to_string(device));
  }
  return at::from_blob(
      host_address(data), tensor.sizes(), tensor.strides(), on_host(tensor));
}

/// Returns host zeros with the same sizes and strides. Clones a CPU tensor.
Tensor host_zeros(const Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return tensor.detach().clone();
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), on_host(tensor))
      .zero_();
}

/// Returns the device of the CUDA tensors among the arguments, or the current
/// device if there are none.
/// @throws c10::Error as LibTorch's own kernels do if tensors are on several
///   devices. A CPU tensor without dimensions is a number, and the indices of
///   `index` may be on the CPU.
c10::Device device_of_arguments(const c10::FunctionSchema& schema,
                                const Arguments& arguments) {
  std::optional<c10::Device> device;
  std::optional<c10::Device> host;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool may_be_on_host = schema.name() == "aten::index" &&
                                schema.arguments()[i].name() == "indices";
    map_tensors(arguments[i], [&](const Tensor& tensor) {
      if (tensor.is_cuda()) {
        TORCH_CHECK(!device || *device == tensor.device(),
                    "Expected all tensors to be on the same device, but found "
                    "at least two devices, ",
                    *device,
                    " and ",
                    tensor.device(),
                    "! (when checking argument ",
                    schema.arguments()[i].name(),
                    " of ",
                    schema.name(),
                    ")");
        device = tensor.device();
      } else if (tensor.dim() > 0 && !may_be_on_host) {
        host = tensor.device();
      }
      return tensor;
    });
  }
  TORCH_CHECK(!device || !host,
              "Expected all tensors to be on the same device, but found at "
              "least two devices, ",
              device.value_or(c10::kCPU),
              " and ",
              host.value_or(c10::kCPU),
              "! (when checking the arguments of ",
              schema.name(),
              ")");
  return device.value_or(c10::Device(c10::kCUDA, c10::cuda::current_device()));
}

Stream* current_stream(c10::Device device) {
  return stream_of(c10::cuda::getCurrentCUDAStream(device.index()).stream(),
                   device.index());
}

Arguments run_on_host(const c10::OperatorHandle& op, Arguments arguments) {
  const at::AutoDispatchBelowAutograd below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  op.callBoxed(&arguments);
  return arguments;
}

/// Draws from the device's generator, one number per call.
at::PhiloxCudaState draw(const IValue& generator, c10::Device device) {
  auto source = generator.isNone()
                    ? at::globalContext().defaultGenerator(device)
                    : generator.toGenerator();
  const std::lock_guard lock(source.mutex());
  return source.get<at::CUDAGeneratorImpl>()->philox_cuda_state(4);
}

/// Returns the CPU generator of a random operator that runs. A recorded
/// operator reads seed and offset from the device's memory, as its kernel does.
at::Generator generator_at(const at::PhiloxCudaState& drawn) {
  const uint64_t seed =
      drawn.captured_ ? *host_address(drawn.seed_.ptr) : drawn.seed_.val;
  const uint64_t offset = drawn.captured_ ? *host_address(drawn.offset_.ptr) +
                                                drawn.offset_intragraph_
                                          : drawn.offset_.val;
  return at::detail::createCPUGenerator(seed * 1000003 + offset);
}

/// Returns the tensors for the results: the `out` arguments, resized, or new
/// tensors. Empty if the operator only writes its arguments.
std::vector<Tensor> make_results(const c10::OperatorHandle& op,
                                 const Signature& signature,
                                 const Arguments& arguments,
                                 Arguments dry,
                                 c10::Device device) {
  std::vector<Tensor> results;
  if (!signature.written.empty() && !signature.has_out) {
    return results;
  }
  const auto like = run_on_host(op, std::move(dry));
  for (size_t i = 0; i < like.size(); ++i) {
    const Tensor& shape = like[i].toTensor();
    if (signature.has_out) {
      const Tensor& out = arguments[signature.written.at(i)].toTensor();
      if (!out.sizes().equals(shape.sizes())) {
        out.resize_(shape.sizes());
      }
    } else {
      results.push_back(shape.defined()
                            ? at::empty_strided(shape.sizes(),
                                                shape.strides(),
                                                shape.options().device(device))
                            : Tensor());
    }
  }
  return results;
}

bool answer_now(const c10::OperatorHandle& op,
                const Arguments& arguments,
                c10::Device device) {
  C10_CUDA_CHECK(check_host_wait(current_stream(device)));
  count(&Counts::stream_synchronizes);
  wait_for(last_of(current_stream(device)));
  return run_on_host(op, map_tensors(arguments, host_alias)).at(0).toBool();
}

/// Queues the operator. Results are copied to `results`; written arguments are
/// modified by the operator itself.
void queue(const c10::OperatorHandle& op,
           const Signature& signature,
           const Arguments& arguments,
           const std::vector<Tensor>& results,
           c10::Device device) {
  C10_CUDA_CHECK(check_enqueue(current_stream(device)));
  const auto inputs = map_tensors(arguments, host_alias);
  const int generator = signature.generator;
  const auto drawn = generator < 0 ? at::PhiloxCudaState()
                                   : draw(arguments[generator], device);
  std::vector<Tensor> outputs;
  for (const Tensor& result : results) {
    outputs.push_back(result.defined() ? host_alias(result) : Tensor());
  }
  count(&Counts::operators);
  enqueue(current_stream(device),
          op.schema().name(),
          [op, inputs, generator, drawn, outputs = std::move(outputs)] {
            auto own = inputs;
            if (generator >= 0) {
              own[generator] = generator_at(drawn);
            }
            const auto values = run_on_host(op, std::move(own));
            for (size_t i = 0; i < outputs.size(); ++i) {
              if (outputs[i].defined()) {
                outputs[i].copy_(values[i].toTensor());
              }
            }
            return true;
          });
}

}  // namespace

void deferred(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Registered here, so that static objects that LibTorch's code created before
  // are destroyed after the engine has stopped.
  [[maybe_unused]] static const int at_exit = std::atexit(stop_engine);
  const Signature signature(op.schema());
  const Arguments arguments(stack->end() - signature.arguments, stack->end());
  stack->resize(stack->size() - signature.arguments);
  const auto device = device_of_arguments(op.schema(), arguments);
  const c10::cuda::CUDAGuard guard(device);
  if (signature.returns_bool) {
    stack->push_back(answer_now(op, arguments, device));
    return;
  }
  auto dry = map_tensors(arguments, host_zeros);
  if (signature.generator >= 0) {
    dry[signature.generator] = at::detail::createCPUGenerator();
  }
  const auto results =
      make_results(op, signature, arguments, std::move(dry), device);
  // After make_results, which may have reallocated an `out` argument.
  queue(op, signature, arguments, results, device);
  if (signature.returns_written) {
    for (const size_t i : signature.written) {
      stack->push_back(arguments[i]);
    }
  }
  for (const Tensor& result : results) {
    stack->push_back(result);
  }
}

}  // namespace fake_gpu
