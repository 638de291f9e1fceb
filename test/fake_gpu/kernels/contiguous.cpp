// Decodes element-wise kernels over contiguous tensors. Arguments: (int count,
// functor, array<char*, tensors> data). The unrolled kernel has further
// arguments: two offset calculators, a loader and a storer.
#include <cstring>

#include "test/fake_gpu/kernels/decode.h"
#include "test/fake_gpu/kernels/element_function.h"
#include "test/fake_gpu/kernels/template_name.h"

namespace fake_gpu {
namespace {

/// Reads the operand types of unrolled_elementwise_kernel<functor, array,
/// elements, input offsets, output offsets, loader, storer>. Loader and storer
/// may cast, and then begin with the types in memory. Returns false if the
/// offsets are not the offsets of contiguous tensors.
bool read_types(const std::vector<std::string>& list,
                void** arguments,
                std::vector<Operand>* operands) {
  if (!contains(list.at(3), "TrivialOffsetCalculator") ||
      !contains(list.at(4), "TrivialOffsetCalculator")) {
    return false;
  }
  if (contains(list.at(5), "LoadWithCast")) {
    for (size_t k = 1; k < operands->size(); ++k) {
      std::memcpy(&(*operands)[k].type,
                  static_cast<char*>(arguments[5]) + k - 1,
                  sizeof(ScalarType));
    }
  }
  if (contains(list.at(6), "StoreWithCast")) {
    std::memcpy(&(*operands)[0].type, arguments[6], sizeof(ScalarType));
  }
  return true;
}

}  // namespace

std::function<bool()> decode_contiguous(const std::string& name,
                                        void** arguments) {
  const bool vectorized =
      contains(name, "at::native::vectorized_elementwise_kernel<");
  const auto list = template_arguments(
      name,
      vectorized ? "at::native::vectorized_elementwise_kernel"
                 : "at::native::unrolled_elementwise_kernel");
  const auto function = parse_function(list.at(vectorized ? 1 : 0),
                                       static_cast<char*>(arguments[1]));
  if (!function) {
    return nullptr;
  }
  std::vector<Operand> operands(function->inputs + 1);
  for (size_t k = 0; k < operands.size(); ++k) {
    std::memcpy(&operands[k].begin,
                static_cast<char**>(arguments[2]) + k,
                sizeof(char*));
    operands[k].type = k == 0 ? function->result : function->argument;
  }
  if (!vectorized && !read_types(list, arguments, &operands)) {
    return nullptr;
  }
  std::vector<size_t> sizes;
  for (const Operand& operand : operands) {
    sizes.push_back(size_of(operand.type));
  }
  const auto offsets = [sizes](int64_t i, std::vector<size_t>& at) {
    for (size_t k = 0; k < sizes.size(); ++k) {
      at[k] = sizes[k] * static_cast<size_t>(i);
    }
  };
  return element_step(
      *function, operands, *static_cast<int*>(arguments[0]), offsets);
}

}  // namespace fake_gpu
