// Decodes element-wise kernels over strided tensors: (int count, lambda). The
// lambda has captured, in this order: OffsetCalculator { int dims; 25 x { size,
// two numbers for fast division }; 25 x strides[tensors] }, the addresses
// array<char*, tensors>, the functor and, if it casts, one type per tensor.
#include <cstring>

#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/kernels/decode.h"
#include "test/fake_gpu/kernels/element_function.h"
#include "test/fake_gpu/kernels/template_name.h"

namespace fake_gpu {
namespace {

constexpr size_t kMaxDims = 25;

struct Dimension {
  uint32_t size = 0;
  std::vector<uint32_t> strides;  // in bytes, for each tensor
};

size_t calculator_bytes(size_t tensors) {
  const size_t words = 1 + 3 * kMaxDims + kMaxDims * tensors;
  return (4 * words + 7) / 8 * 8;
}

std::vector<Dimension> read_calculator(const char* object, size_t tensors) {
  std::vector<uint32_t> words(calculator_bytes(tensors) / 4);
  std::memcpy(words.data(), object, 4 * words.size());
  std::vector<Dimension> dimensions(words[0]);
  for (size_t d = 0; d < dimensions.size(); ++d) {
    dimensions[d].size = words[1 + 3 * d];
    const auto* strides = &words[1 + 3 * kMaxDims + d * tensors];
    dimensions[d].strides.assign(strides, strides + tensors);
  }
  return dimensions;
}

Offsets offsets_of(std::vector<Dimension> dimensions) {
  return
      [dimensions = std::move(dimensions)](int64_t i, std::vector<size_t>& at) {
        at.assign(at.size(), 0);
        auto rest = static_cast<uint32_t>(i);
        for (const Dimension& dimension : dimensions) {
          const uint32_t index = rest % dimension.size;
          rest /= dimension.size;
          for (size_t k = 0; k < at.size(); ++k) {
            at[k] += size_t{index} * dimension.strides[k];
          }
        }
      };
}

/// Returns true if the functor is empty. An empty functor occupies one byte,
/// and the types of a casting kernel follow.
bool is_empty(std::string_view functor) {
  return contains(functor, "copy_kernel_cuda") ||
         starts_with(functor, "at::native::BinaryFunctor<");
}

}  // namespace

std::function<bool()> decode_strided(const std::string& name,
                                     void** arguments) {
  const auto lambda =
      template_arguments(name, "at::native::elementwise_kernel").at(2);
  const bool casts = !contains(lambda, "gpu_kernel_impl_nocast<");
  const auto functors =
      template_arguments(lambda,
                         casts ? "at::native::gpu_kernel_impl"
                               : "at::native::gpu_kernel_impl_nocast");
  if (functors.empty()) {
    return nullptr;
  }
  const size_t tensors = 1 + input_count(functors[0]);
  const auto* object = static_cast<const char*>(arguments[1]);
  const char* addresses = object + calculator_bytes(tensors);
  const char* functor = addresses + sizeof(char*) * tensors;
  const auto function = parse_function(functors[0], functor);
  if (!function || (casts && !is_empty(functors[0]))) {
    return nullptr;
  }
  std::vector<Operand> operands(tensors);
  for (size_t k = 0; k < tensors; ++k) {
    auto& operand = operands[k];
    std::memcpy(&operand.begin, addresses + sizeof(char*) * k, sizeof(char*));
    // Another version of LibTorch may have another layout; this is no address
    // then.
    if (device_of(operand.begin) < 0) {
      return nullptr;
    }
    operand.type = k == 0 ? function->result : function->argument;
    if (casts) {
      std::memcpy(&operand.type, functor + 1 + k, sizeof(ScalarType));
    }
  }
  return element_step(*function,
                      operands,
                      *static_cast<int*>(arguments[0]),
                      offsets_of(read_calculator(object, tensors)));
}

}  // namespace fake_gpu
