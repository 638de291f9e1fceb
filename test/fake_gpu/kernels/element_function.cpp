#include "test/fake_gpu/kernels/element_function.h"

#include <cstring>

#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/kernels/template_name.h"

namespace fake_gpu {
namespace {

// Computes in the type of the operands, as kernels do. For narrower types an
// exact result that is rounded once is the same; for double it is not.
Number combine(char operation, ScalarType type, Number a, Number b) {
  if (type == ScalarType::Double) {
    const auto x = static_cast<double>(a);
    const auto y = static_cast<double>(b);
    return operation == '*' ? x * y : operation == '/' ? x / y : x + y;
  }
  return operation == '*' ? a * b : operation == '/' ? a / b : a + b;
}

/// Returns '*', '/', or 0 for another functor.
char operation_of(std::string_view functor) {
  if (contains(functor, "MulFunctor<")) {
    return '*';
  }
  return contains(functor, "DivFunctor<") ? '/' : '\0';
}

std::optional<ElementFunction> checked(ElementFunction function) {
  const bool copies = !function.compute;
  const bool known =
      copies ? size_of(function.result) > 0
             : is_number(function.result) && is_number(function.argument);
  return known ? std::optional(std::move(function)) : std::nullopt;
}

/// Parses FillFunctor<T> { T value }.
std::optional<ElementFunction> parse_fill(std::string_view functor,
                                          const char* object) {
  const auto types = template_arguments(functor, "at::native::FillFunctor");
  ElementFunction result;
  result.result = result.argument = type_named(types.at(0));
  result.constant.assign(object, size_of(result.result));
  return checked(std::move(result));
}

/// Parses AUnaryFunctor<argument, other, result, F> { F f; opmath a }, which
/// computes f(a, x), and BUnaryFunctor, with the number as the second argument.
/// F is empty.
std::optional<ElementFunction> parse_unary(std::string_view functor,
                                           const char* object) {
  const bool first = starts_with(functor, "at::native::AUnaryFunctor<");
  const auto types = template_arguments(
      functor,
      first ? "at::native::AUnaryFunctor" : "at::native::BUnaryFunctor");
  const char operation = operation_of(types.at(3));
  const auto type = type_named(
      template_arguments(types[3], types[3].substr(0, types[3].find('<')))
          .at(0));
  if (operation == 0 || !is_number(type)) {
    return std::nullopt;
  }
  const Number value = load(object + size_of(type), type);
  const auto compute = [=](const Number* x) {
    return first ? combine(operation, type, value, x[0])
                 : combine(operation, type, x[0], value);
  };
  return checked({1, type_named(types[0]), type_named(types[2]), compute, {}});
}

/// Parses BinaryFunctor<first, second, result, F> { F f }.
std::optional<ElementFunction> parse_binary(std::string_view functor,
                                            const char*) {
  const auto types = template_arguments(functor, "at::native::BinaryFunctor");
  const char operation = operation_of(types.at(3));
  const auto type = type_named(types[0]);
  if (operation == 0 || types[0] != types[1]) {
    return std::nullopt;
  }
  const auto compute = [=](const Number* x) {
    return combine(operation, type, x[0], x[1]);
  };
  return checked({2, type, type_named(types[2]), compute, {}});
}

/// Parses CUDAFunctor_add<T, opmath> { opmath alpha }.
std::optional<ElementFunction> parse_add(std::string_view functor,
                                         const char* object) {
  const auto types = template_arguments(functor, "at::native::CUDAFunctor_add");
  const auto type = type_named(types.at(0));
  const auto wide = type_named(types.at(1));
  const Number alpha = load(object, wide);
  const auto compute = [=](const Number* x) {
    return combine('+', wide, x[0], combine('*', wide, alpha, x[1]));
  };
  return checked({2, type, type, compute, {}});
}

/// Returns the type of a lambda that returns its only argument. nvcc writes it
/// as `lambda(T)`, `T (T)>` or `T, T>` at the end.
ScalarType copied_type(std::string_view functor) {
  for (const std::string name : {"float",
                                 "double",
                                 "c10::Half",
                                 "c10::BFloat16",
                                 "int",
                                 "long",
                                 "short",
                                 "signed char",
                                 "unsigned char",
                                 "bool",
                                 "c10::complex<float>",
                                 "c10::complex<double>"}) {
    if (contains(functor, "lambda(" + name + ")") ||
        contains(functor, ", " + name + " (" + name + ")>") ||
        contains(functor, ", " + name + ", " + name + ">")) {
      return type_named(name);
    }
  }
  return ScalarType::Undefined;
}

std::optional<ElementFunction> parse_copy(std::string_view functor,
                                          const char*) {
  if (contains(functor, "float16_copy_kernel_cuda")) {
    const auto to = contains(functor, "bfloat16_copy") ? ScalarType::BFloat16
                                                       : ScalarType::Half;
    return ElementFunction{
        1, ScalarType::Float, to, [](const Number* x) { return x[0]; }, {}};
  }
  const auto type = copied_type(functor);
  return checked({1, type, type, nullptr, {}});
}

struct Parser {
  std::string_view name;  // name of the functor, or a part of it
  int inputs;
  std::optional<ElementFunction> (*parse)(std::string_view, const char*);
};

constexpr Parser kParsers[] = {
    {"at::native::FillFunctor<", 0, parse_fill},
    {"at::native::AUnaryFunctor<", 1, parse_unary},
    {"at::native::BUnaryFunctor<", 1, parse_unary},
    {"at::native::BinaryFunctor<", 2, parse_binary},
    {"at::native::CUDAFunctor_add<", 2, parse_add},
    {"copy_kernel_cuda", 1, parse_copy},
};

const Parser* parser_of(std::string_view functor) {
  for (const Parser& parser : kParsers) {
    if (parser.parse == parse_copy ? contains(functor, parser.name)
                                   : starts_with(functor, parser.name)) {
      return &parser;
    }
  }
  return nullptr;
}

void compute_element(const ElementFunction& function,
                     const std::vector<Operand>& operands,
                     const std::vector<size_t>& offsets) {
  const auto place = [&](size_t k) {
    return host_address(operands[k].begin) + offsets[k];
  };
  if (function.inputs == 0) {
    std::memcpy(place(0), function.constant.data(), function.constant.size());
    return;
  }
  if (!function.compute && operands[0].type == operands[1].type) {
    std::memcpy(place(0), place(1), size_of(operands[0].type));
    return;
  }
  Number x[2] = {};
  for (int k = 0; k < function.inputs; ++k) {
    const auto type = operands[k + 1].type;
    x[k] = rounded(load(place(k + 1), type), function.argument);
  }
  const Number value = function.compute ? function.compute(x) : x[0];
  store(place(0), operands[0].type, rounded(value, function.result));
}

/// Returns false if a cast of complex numbers would be needed; they can only be
/// copied.
bool can_cast(const ElementFunction& function,
              const std::vector<Operand>& operands) {
  if (function.inputs == 0) {
    return operands[0].type == function.result;
  }
  bool numbers = true;
  for (const Operand& operand : operands) {
    numbers = numbers && is_number(operand.type);
  }
  return numbers || (!function.compute && operands[0].type == operands[1].type);
}

}  // namespace

int input_count(std::string_view functor) {
  const Parser* parser = parser_of(functor);
  return parser == nullptr ? 0 : parser->inputs;
}

std::optional<ElementFunction> parse_function(std::string_view functor,
                                              const char* object) {
  const Parser* parser = parser_of(functor);
  return parser == nullptr ? std::nullopt : parser->parse(functor, object);
}

std::function<bool()> element_step(ElementFunction function,
                                   std::vector<Operand> operands,
                                   int64_t count,
                                   Offsets offsets) {
  if (!can_cast(function, operands)) {
    return nullptr;
  }
  return [=, function = std::move(function), operands = std::move(operands)] {
    std::vector<size_t> at(operands.size());
    for (int64_t i = 0; i < count; ++i) {
      offsets(i, at);
      compute_element(function, operands, at);
    }
    return true;
  };
}

}  // namespace fake_gpu
