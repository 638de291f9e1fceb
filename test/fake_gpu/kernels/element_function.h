#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "test/fake_gpu/kernels/element.h"

namespace fake_gpu {

/// What an element-wise kernel does with the elements of one index, read from
/// the name and the bytes of LibTorch's functor.
struct ElementFunction {
  int inputs = 0;
  ScalarType argument = ScalarType::Undefined;  // of each input
  ScalarType result = ScalarType::Undefined;
  std::function<Number(const Number*)> compute;  // empty: copies bytes
  std::string constant;  // inputs == 0: the bytes to copy
};

/// By the functor's name alone.
int input_count(std::string_view functor);

/// `object` points to the functor. Nothing for a functor that has no stand-in.
std::optional<ElementFunction> parse_function(std::string_view functor,
                                              const char* object);

/// A tensor that a kernel reads or writes.
struct Operand {
  char* begin = nullptr;  // as the device has it
  ScalarType type = ScalarType::Undefined;
};

/// For element i, its distance in bytes in each operand; the result is first.
using Offsets = std::function<void(int64_t i, std::vector<size_t>& offsets)>;

/// A step that computes `count` elements; operands[0] is the result. Casts
/// where an operand's type is not the function's.
std::function<bool()> element_step(ElementFunction function,
                                   std::vector<Operand> operands,
                                   int64_t count,
                                   Offsets offsets);

}  // namespace fake_gpu
