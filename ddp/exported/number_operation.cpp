#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include <c10/util/generic_math.h>

#include "ddp/exported/graph.h"

namespace ddp::detail {
namespace {

using Number = c10::IValue;           // an int64_t, a double or a bool
__extension__ using Wide = __int128;  // holds products of two int64_t

void refuse_if(bool is_so, const char* problem) {
  TORCH_CHECK(!is_so, "Expected an operation on numbers, but got ", problem);
}

template <typename Value>
Value value_of(const Number& x) {
  return x.isDouble() ? static_cast<Value>(x.toDouble())
         : x.isBool() ? static_cast<Value>(x.toBool())
                      : static_cast<Value>(x.toInt());
}

template <typename Value>
Number as_number(const Value& x) {
  if constexpr (std::is_same_v<Value, Wide>) {  // Python's have no limit
    refuse_if(static_cast<int64_t>(x) != x, "an integer beyond 64 bits");
    return static_cast<int64_t>(x);
  } else {
    return x;
  }
}

template <typename Compute, size_t... I>
Operation operation(std::index_sequence<I...> /*arguments*/, Compute compute) {
  return [compute](Values& stack, const RunMode& /*mode*/) {
    TORCH_CHECK(stack.size() == sizeof...(I),
                "Expected ",
                sizeof...(I),
                " arguments of an operation on numbers, but got ",
                stack.size());
    stack = {as_number(compute(stack[I]...))};
  };
}

/// @param compute  of a double and of a Wide.
template <typename Compute>
Operation unary(Compute compute) {
  return operation(std::make_index_sequence<1>(), [=](const Number& x) {
    return x.isDouble() ? as_number(compute(x.toDouble()))
                        : as_number(compute(value_of<Wide>(x)));
  });
}

/// @param compute  of two Reals and of two Wides.
template <typename Real = double, typename Compute>
Operation binary(Compute compute) {
  return operation(
      std::make_index_sequence<2>(), [=](const Number& x, const Number& y) {
        return x.isDouble() || y.isDouble()
                   ? as_number(compute(value_of<Real>(x), value_of<Real>(y)))
                   : as_number(compute(value_of<Wide>(x), value_of<Wide>(y)));
      });
}

/// A long double holds each int64_t and each double.
template <typename Compare>
Operation comparison(Compare compare) {
  return binary<long double>(compare);
}

template <typename Compute>
Operation bitwise(Compute compute) {
  return operation(
      std::make_index_sequence<2>(), [=](const Number& x, const Number& y) {
        refuse_if(x.isDouble() || y.isDouble(), "bits of a float");
        const auto result = compute(value_of<int64_t>(x), value_of<int64_t>(y));
        return x.isBool() && y.isBool() ? Number(result != 0) : Number(result);
      });
}

Operation rounding(double (*round)(double)) {
  return unary([=](auto x) -> Wide {
    if constexpr (std::is_same_v<decltype(x), double>) {
      refuse_if(!(std::abs(x) < 0x1p64), "an integer beyond 64 bits");
      return static_cast<Wide>(round(x));
    } else {
      return x;
    }
  });
}

/// Python throws if the result is not finite, but the arguments are.
double check_finite(double result, double x, double y = 0) {
  refuse_if(!std::isfinite(result) && std::isfinite(x) && std::isfinite(y),
            "a result that is no finite number");
  return result;
}

Operation real_function(double (*function)(double)) {
  return unary([=](auto x) {
    const auto real = static_cast<double>(x);
    return check_finite(function(real), real);
  });
}

Wide remainder_of(Wide x, Wide y) {
  return x % y;
}
double remainder_of(double x, double y) {
  return std::fmod(x, y);
}

/// The remainder has the sign of the divisor.
template <typename Value>
Value floor_remainder(Value x, Value y) {
  refuse_if(y == 0, "a division by zero");
  const auto rest = remainder_of(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

template <typename Value>
Value floor_quotient(Value x, Value y) {
  const auto rest = floor_remainder(x, y);
  if constexpr (std::is_same_v<Value, Wide>) {
    return (x - rest) / y;
  } else {
    return c10::div_floor_floating(x, y);
  }
}

Number power(double x, double y) {
  return check_finite(std::pow(x, y), x, y);
}

Number power(Wide x, Wide y) {
  if (y < 0) {
    return power(static_cast<double>(x), static_cast<double>(y));
  }
  Wide result = 1;
  // Higher powers than 64 are beyond 64 bits, except powers of -1, 0 and 1.
  for (auto times = std::min(y, 64 + y % 2); times > 0; --times) {
    result = as_number(result * x).toInt();
  }
  return as_number(result);
}

double quotient(double x, double y) {
  refuse_if(y == 0, "a division by zero");
  return x / y;
}

std::map<std::string, Operation> all_operations() {
  return {
      {"_operator.add", binary(std::plus<>())},
      {"_operator.sub", binary(std::minus<>())},
      {"_operator.mul", binary(std::multiplies<>())},
      {"_operator.floordiv",
       binary([](auto x, auto y) { return floor_quotient(x, y); })},
      {"_operator.mod",
       binary([](auto x, auto y) { return floor_remainder(x, y); })},
      {"_operator.pow", binary([](auto x, auto y) { return power(x, y); })},
      {"_operator.truediv",
       binary([](auto x, auto y) { return quotient(x, y); })},
      {"_operator.neg", unary(std::negate<>())},
      {"_operator.pos", unary([](auto x) { return x; })},
      {"abs", unary([](auto x) { return x < 0 ? -x : x; })},
      {"_operator.eq", comparison(std::equal_to<>())},
      {"_operator.ne", comparison(std::not_equal_to<>())},
      {"_operator.lt", comparison(std::less<>())},
      {"_operator.le", comparison(std::less_equal<>())},
      {"_operator.gt", comparison(std::greater<>())},
      {"_operator.ge", comparison(std::greater_equal<>())},
      {"_operator.and_", bitwise(std::bit_and<>())},
      {"_operator.or_", bitwise(std::bit_or<>())},
      {"_operator.xor", bitwise(std::bit_xor<>())},
      {"torch.sym_not", unary([](auto x) { return x == 0; })},
      {"torch.sym_int", rounding(std::trunc)},
      {"math.trunc", rounding(std::trunc)},
      {"math.floor", rounding(std::floor)},
      {"math.ceil", rounding(std::ceil)},
      {"round", rounding(std::nearbyint)},
      {"math.sqrt", real_function(std::sqrt)},
      {"torch._sym_sqrt", real_function(std::sqrt)},
      {"math.log2", real_function(std::log2)},
      {"torch.sym_float", unary([](auto x) { return static_cast<double>(x); })},
      {"torch.sym_max", binary([](auto x, auto y) { return std::max(x, y); })},
      {"torch.sym_min", binary([](auto x, auto y) { return std::min(x, y); })}};
}

}  // namespace

Operation number_operation(const std::string& name) {
  static const auto operations = all_operations();
  const auto found = operations.find(name);
  return found == operations.end() ? nullptr : found->second;
}

}  // namespace ddp::detail
