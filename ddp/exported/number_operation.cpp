#include <cmath>
#include <functional>

#include "ddp/exported/graph.h"

namespace ddp::detail {
namespace {

/// Wide enough for a sum or a product of numbers of 64 bits.
__extension__ using Integer = __int128;

bool is_integer(const c10::IValue& value) {
  return value.isInt() || value.isBool();
}

Integer integer(const c10::IValue& value) {
  return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
}

double real(const c10::IValue& value) {
  return is_integer(value) ? static_cast<double>(integer(value))
                           : value.toDouble();
}

c10::IValue result(bool value) {
  return value;
}

c10::IValue result(double value) {
  return value;
}

c10::IValue result(Integer value) {
  TORCH_CHECK(value >= INT64_MIN && value <= INT64_MAX,
              "Expected a number of 64 bits, but got a larger one");
  return static_cast<int64_t>(value);
}

using Function = std::function<c10::IValue(const Values&)>;

Operation operation(size_t arguments, Function compute) {
  return [arguments, compute = std::move(compute)](Values& stack,
                                                   const RunMode& /*mode*/) {
    TORCH_CHECK(stack.size() == arguments,
                "Expected ",
                arguments,
                " arguments of an operation on numbers, but got ",
                stack.size());
    stack = {compute(stack)};
  };
}

template <typename Compute>
Operation unary(Compute compute) {
  return operation(1, [compute](const Values& v) {
    return is_integer(v[0]) ? result(compute(integer(v[0])))
                            : result(compute(real(v[0])));
  });
}

/// As in Python: on integers if both are, otherwise on floats.
template <typename Compute>
Operation binary(Compute compute) {
  return operation(2, [compute](const Values& v) {
    return is_integer(v[0]) && is_integer(v[1])
               ? result(compute(integer(v[0]), integer(v[1])))
               : result(compute(real(v[0]), real(v[1])));
  });
}

double floor_divide(double left, double right) {
  return std::floor(left / right);
}

Integer floor_divide(Integer left, Integer right) {
  TORCH_CHECK(right != 0, "Expected no division by zero, but got one");
  const Integer quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1
                                                        : quotient;
}

Integer truncate(Integer value) {
  return value;
}

Integer truncate(double value) {
  TORCH_CHECK(
      std::abs(value) < 9e18, "Expected a number of 64 bits, but got ", value);
  return static_cast<Integer>(value);
}

c10::IValue power(const Values& v) {
  const double value = std::pow(real(v[0]), real(v[1]));
  const bool is_exact = is_integer(v[0]) && is_integer(v[1]) &&
                        integer(v[1]) >= 0 && std::abs(value) < 0x1p53;
  return is_exact ? result(truncate(value)) : result(value);
}

c10::IValue item_at(const Values& v) {
  const auto items = v[0].isTuple() ? v[0].toTupleRef().elements().vec()
                                    : v[0].toListRef().vec();
  const int64_t at = v[1].toInt();
  TORCH_CHECK(at >= 0 && at < static_cast<int64_t>(items.size()),
              "Expected an index below ",
              items.size(),
              ", but got ",
              at);
  return items[static_cast<size_t>(at)];
}

}  // namespace

Operation number_operation(const std::string& name) {
  const auto as_real = [](auto x) { return static_cast<double>(x); };
  static const std::map<std::string, Operation> operations{
      {"_operator.add", binary(std::plus<>())},
      {"_operator.sub", binary(std::minus<>())},
      {"_operator.mul", binary(std::multiplies<>())},
      {"_operator.neg", unary(std::negate<>())},
      {"_operator.pos", unary([](auto x) { return x; })},
      {"_operator.floordiv",
       binary([](auto x, auto y) { return floor_divide(x, y); })},
      {"_operator.mod",
       binary([](auto x, auto y) { return x - y * floor_divide(x, y); })},
      {"_operator.truediv",
       binary([=](auto x, auto y) { return as_real(x) / as_real(y); })},
      {"_operator.pow", operation(2, power)},
      {"_operator.eq", binary(std::equal_to<>())},
      {"_operator.ne", binary(std::not_equal_to<>())},
      {"_operator.lt", binary(std::less<>())},
      {"_operator.le", binary(std::less_equal<>())},
      {"_operator.gt", binary(std::greater<>())},
      {"_operator.ge", binary(std::greater_equal<>())},
      {"_operator.and_", binary(std::logical_and<>())},
      {"_operator.or_", binary(std::logical_or<>())},
      {"_operator.getitem", operation(2, item_at)},
      {"torch.sym_not", unary(std::logical_not<>())},
      {"torch.sym_int", unary([](auto x) { return truncate(x); })},
      {"math.trunc", unary([](auto x) { return truncate(x); })},
      {"torch.sym_float", unary(as_real)},
      {"torch.sym_max", binary([](auto x, auto y) { return x < y ? y : x; })},
      {"torch.sym_min", binary([](auto x, auto y) { return y < x ? y : x; })},
      {"torch.sym_ite",
       operation(3,
                 [](const Values& v) { return v[0].toBool() ? v[1] : v[2]; })},
      {"torch._sym_sqrt",
       unary([=](auto x) { return std::sqrt(as_real(x)); })}};
  const auto found = operations.find(name);
  return found == operations.end() ? nullptr : found->second;
}

}  // namespace ddp::detail
