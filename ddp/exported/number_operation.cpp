#include <functional>
#include <map>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "ddp/exported/graph.h"

namespace ddp::detail {
namespace {

using Numbers = std::vector<at::Tensor>;

at::Tensor tensor_of(const c10::IValue& number) {
  const auto scalar = number.toScalar();
  return at::scalar_tensor(scalar,
                           scalar.isFloatingPoint() ? at::kDouble : at::kLong);
}

/// Computes in tensors without dimensions: LibTorch's operators have Python's
/// results for negative numbers, division by zero and mixed types.
template <typename Compute>
Operation operation(size_t arguments, Compute compute) {
  return [arguments, compute](Values& stack, const RunMode& /*mode*/) {
    TORCH_CHECK(stack.size() == arguments,
                "Expected ",
                arguments,
                " arguments of an operation on numbers, but got ",
                stack.size());
    Numbers numbers;
    for (const auto& value : stack) {
      numbers.push_back(tensor_of(value));
    }
    stack = {compute(numbers).item()};
  };
}

template <typename Compute>
Operation unary(Compute compute) {
  return operation(1, [compute](const Numbers& v) { return compute(v[0]); });
}

template <typename Compute>
Operation binary(Compute compute) {
  return operation(2,
                   [compute](const Numbers& v) { return compute(v[0], v[1]); });
}

at::Tensor as_double(const at::Tensor& x) {
  return x.to(at::kDouble);
}

at::Tensor as_integer(const at::Tensor& x) {
  return x.to(at::kLong);
}

at::Tensor power(const at::Tensor& x, const at::Tensor& y) {
  const bool is_fraction = y.item<double>() < 0;
  return at::pow(is_fraction ? as_double(x) : x, y);
}

at::Tensor choose(const Numbers& v) {
  return at::where(v[0].to(at::kBool), v[1], v[2]);
}

}  // namespace

Operation number_operation(const std::string& name) {
  static const std::map<std::string, Operation> operations{
      {"_operator.add", binary(std::plus<>())},
      {"_operator.sub", binary(std::minus<>())},
      {"_operator.mul", binary(std::multiplies<>())},
      {"_operator.neg", unary(std::negate<>())},
      {"_operator.pos", unary([](const auto& x) { return x; })},
      {"_operator.floordiv", binary([](const auto& x, const auto& y) {
         return at::floor_divide(x, y);
       })},
      {"_operator.mod", binary([](const auto& x, const auto& y) {
         return at::remainder(x, y);
       })},
      {"_operator.truediv",
       binary([](const auto& x, const auto& y) { return as_double(x) / y; })},
      {"_operator.pow", binary(power)},
      {"_operator.eq", binary(std::equal_to<>())},
      {"_operator.ne", binary(std::not_equal_to<>())},
      {"_operator.lt", binary(std::less<>())},
      {"_operator.le", binary(std::less_equal<>())},
      {"_operator.gt", binary(std::greater<>())},
      {"_operator.ge", binary(std::greater_equal<>())},
      {"_operator.and_", binary(at::logical_and)},
      {"_operator.or_", binary(at::logical_or)},
      {"torch.sym_not", unary(at::logical_not)},
      {"torch.sym_int", unary(as_integer)},
      {"math.trunc", unary(as_integer)},
      {"torch.sym_float", unary(as_double)},
      {"torch.sym_max", binary(at::maximum)},
      {"torch.sym_min", binary(at::minimum)},
      {"torch.sym_ite", operation(3, choose)},
      {"torch._sym_sqrt",
       unary([](const auto& x) { return as_double(x).sqrt(); })}};
  const auto found = operations.find(name);
  return found == operations.end() ? nullptr : found->second;
}

}  // namespace ddp::detail
