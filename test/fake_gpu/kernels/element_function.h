#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "test/fake_gpu/kernels/element.h"

namespace fake_gpu {

/// The computation of an element-wise kernel for one index, parsed from the
/// name and the bytes of LibTorch's functor.
struct ElementFunction {
  int inputs = 0;
  ScalarType argument = ScalarType::Undefined;  // type of each input
  ScalarType result = ScalarType::Undefined;
  std::function<Number(const Number*)> compute;  // empty: copies bytes
  std::string constant;  // if inputs == 0: the bytes to copy
};

/// Returns the number of inputs, by the functor's name alone.
int input_count(std::string_view functor);

/// Parses a functor. Returns std::nullopt for an unsupported functor.
/// @param object  address of the functor.
std::optional<ElementFunction> parse_function(std::string_view functor,
                                              const char* object);

/// A tensor that a kernel reads or writes.
struct Operand {
  char* begin = nullptr;  // device address
  ScalarType type = ScalarType::Undefined;
};

/// Computes the byte offset of element i in each operand; the result is first.
using Offsets = std::function<void(int64_t i, std::vector<size_t>& offsets)>;

/// Returns a step that computes `count` elements; operands[0] is the result.
/// Casts if an operand's type differs from the function's.
std::function<bool()> element_step(ElementFunction function,
                                   std::vector<Operand> operands,
                                   int64_t count,
                                   Offsets offsets);

}  // namespace fake_gpu
