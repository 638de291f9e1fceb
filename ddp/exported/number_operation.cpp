#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include <c10/util/generic_math.h>

#include "ddp/exported/graph.h"

namespace ddp::detail {
namespace {

using Number = c10::IValue;  // an int64_t, a double or a bool

int64_t as_integer(const Number& x) {
  return x.isBool() ? static_cast<int64_t>(x.toBool()) : x.toInt();
}

/// A long double holds each int64_t and each double.
template <typename Real = double>
Real as_real(const Number& x) {
  return x.isDouble() ? static_cast<Real>(x.toDouble())
                      : static_cast<Real>(as_integer(x));
}

void refuse_if(bool is_so, const char* problem) {
  TORCH_CHECK(!is_so, "Expected an operation on numbers, but got ", problem);
}

/// Python throws if the result is not finite, but the arguments are.
double check_finite(double result, double x, double y = 0) {
  refuse_if(!std::isfinite(result) && std::isfinite(x) && std::isfinite(y),
            "a result that is no finite number");
  return result;
}

template <typename Compute>
Operation operation(size_t arguments, Compute compute) {
  return [arguments, compute](Values& stack, const RunMode& /*mode*/) {
    TORCH_CHECK(stack.size() == arguments,
                "Expected ",
                arguments,
                " arguments of an operation on numbers, but got ",
                stack.size());
    stack = {Number(compute(stack))};
  };
}

template <typename Compute>
Operation unary(Compute compute) {
  return operation(1, [compute](const Values& v) { return compute(v[0]); });
}

template <typename Compute>
Operation binary(Compute compute) {
  return operation(2,
                   [compute](const Values& v) { return compute(v[0], v[1]); });
}

/// Integers of Python have no limit: a result beyond 64 bits is an error.
/// @param overflows  computes in integers: (x, y, &result)
template <typename Overflows, typename Real>
auto arithmetic(Overflows overflows, Real compute) {
  return [=](const Number& x, const Number& y) -> Number {
    if (x.isDouble() || y.isDouble()) {
      return compute(as_real(x), as_real(y));
    }
    int64_t result = 0;
    refuse_if(overflows(as_integer(x), as_integer(y), &result),
              "an integer beyond 64 bits");
    return result;
  };
}

template <typename Compare>
Operation comparison(Compare compare) {
  return binary([=](const Number& x, const Number& y) {
    return compare(as_real<long double>(x), as_real<long double>(y));
  });
}

template <typename Compute>
Operation bitwise(Compute compute) {
  return binary([=](const Number& x, const Number& y) {
    const int64_t result = compute(as_integer(x), as_integer(y));
    return x.isBool() && y.isBool() ? Number(result != 0) : Number(result);
  });
}

Operation rounding(double (*round)(double)) {
  return unary([=](const Number& x) {
    const double result = x.isDouble() ? round(x.toDouble()) : 0;
    refuse_if(!(result >= -0x1p63 && result < 0x1p63),
              "an integer beyond 64 bits");
    return x.isDouble() ? static_cast<int64_t>(result) : as_integer(x);
  });
}

/// The greater number or the smaller one, in the common type of both.
template <typename Compare>
Operation extreme(Compare compare) {
  return binary([=](const Number& x, const Number& y) {
    const auto& chosen =
        compare(as_real<long double>(y), as_real<long double>(x)) ? y : x;
    return x.isDouble() || y.isDouble() ? Number(as_real(chosen)) : chosen;
  });
}

double floor_quotient(double x, double y) {
  refuse_if(y == 0, "a division by zero");
  return c10::div_floor_floating(x, y);
}

/// The remainder has the sign of the divisor.
double floor_remainder(double x, double y) {
  refuse_if(y == 0, "a division by zero");
  const double result = std::fmod(x, y);
  return result != 0 && (result < 0) != (y < 0) ? result + y : result;
}

double real_power(double x, double y) {
  return check_finite(std::pow(x, y), x, y);
}

/// Rounds the decimal digits of a number, of which a double is an exact sum.
double round_decimal(const Number& x, const Number& digits) {
  char text[1000];
  const auto count = as_integer(digits);
  refuse_if(count < 0 || count > 300, "decimals out of 0 to 300");
  const auto end = std::to_chars(std::begin(text),
                                 std::end(text),
                                 as_real(x),
                                 std::chars_format::fixed,
                                 static_cast<int>(count))
                       .ptr;
  double result = 0;
  std::from_chars(text, end, result);
  return result;
}

bool power_overflows(int64_t x, int64_t y, int64_t* result) {
  *result = 1;
  for (bool is_beyond = false; y > 0; y >>= 1) {
    if (y % 2 != 0 &&
        (is_beyond || __builtin_mul_overflow(*result, x, result))) {
      return true;
    }
    is_beyond = is_beyond || __builtin_mul_overflow(x, x, &x);
  }
  return false;
}

std::map<std::string, Operation> all_operations() {
  const auto add = arithmetic(
      [](auto... v) { return __builtin_add_overflow(v...); }, std::plus<>());
  const auto subtract = arithmetic(
      [](auto... v) { return __builtin_sub_overflow(v...); }, std::minus<>());
  const auto multiply =
      arithmetic([](auto... v) { return __builtin_mul_overflow(v...); },
                 std::multiplies<>());
  const auto divide = arithmetic(
      [](int64_t x, int64_t y, int64_t* result) {
        refuse_if(y == 0, "a division by zero");
        *result = y == -1 ? x : c10::div_floor_integer(x, y);
        return y == -1 && __builtin_mul_overflow(x, y, result);
      },
      floor_quotient);
  const auto remain = arithmetic(
      [](int64_t x, int64_t y, int64_t* result) {
        refuse_if(y == 0, "a division by zero");
        *result = y == -1 ? 0 : x % y;
        *result += *result != 0 && (*result < 0) != (y < 0) ? y : 0;
        return false;
      },
      floor_remainder);
  const auto raise = arithmetic(power_overflows, real_power);
  const auto power = [=](const Number& x, const Number& y) {
    return !y.isDouble() && as_integer(y) < 0 ? raise(as_real(x), y)
                                              : raise(x, y);
  };
  std::map<std::string, Operation> all{
      {"_operator.add", binary(add)},
      {"_operator.sub", binary(subtract)},
      {"_operator.mul", binary(multiply)},
      {"_operator.floordiv", binary(divide)},
      {"_operator.mod", binary(remain)},
      {"_operator.pow", binary(power)},
      {"_operator.truediv", binary([](const Number& x, const Number& y) {
         refuse_if(as_real(y) == 0, "a division by zero");
         return as_real(x) / as_real(y);
       })},
      {"_operator.neg", unary([=](const auto& x) { return multiply(x, -1); })},
      {"_operator.pos", unary([=](const auto& x) { return multiply(x, 1); })},
      {"abs", unary([=](const Number& x) {
         return multiply(x, as_real(x) < 0 ? -1 : 1);
       })},
      {"_operator.eq", comparison(std::equal_to<>())},
      {"_operator.ne", comparison(std::not_equal_to<>())},
      {"_operator.lt", comparison(std::less<>())},
      {"_operator.le", comparison(std::less_equal<>())},
      {"_operator.gt", comparison(std::greater<>())},
      {"_operator.ge", comparison(std::greater_equal<>())},
      {"_operator.and_", bitwise(std::bit_and<>())},
      {"_operator.or_", bitwise(std::bit_or<>())},
      {"_operator.xor", bitwise(std::bit_xor<>())},
      {"torch.sym_not", unary([](const Number& x) { return as_real(x) == 0; })},
      {"torch.sym_int", rounding(std::trunc)},
      {"math.trunc", rounding(std::trunc)},
      {"math.floor", rounding(std::floor)},
      {"math.ceil", rounding(std::ceil)},
      {"round", rounding(std::nearbyint)},  // to even
      {"round, decimals", binary(round_decimal)},
      {"torch.sym_float", unary(as_real<double>)},
      {"torch.sym_max", extreme(std::greater<>())},
      {"torch.sym_min", extreme(std::less<>())},
      {"torch.sym_ite", operation(3, [](const Values& v) {
         return as_real(v[0]) != 0 ? v[1] : v[2];
       })}};
  using Function = double (*)(double);
  static const std::map<std::string, Function> functions{{"sqrt", std::sqrt},
                                                         {"exp", std::exp},
                                                         {"log", std::log},
                                                         {"log2", std::log2},
                                                         {"sin", std::sin},
                                                         {"cos", std::cos},
                                                         {"tan", std::tan},
                                                         {"asin", std::asin},
                                                         {"acos", std::acos},
                                                         {"atan", std::atan},
                                                         {"sinh", std::sinh},
                                                         {"cosh", std::cosh},
                                                         {"tanh", std::tanh},
                                                         {"asinh", std::asinh}};
  for (const auto& [name, compute] : functions) {
    all["math." + name] = all["torch._sym_" + name] =
        unary([compute = compute](const Number& x) {
          return check_finite(compute(as_real(x)), as_real(x));
        });
  }
  return all;
}

}  // namespace

Operation number_operation(const std::string& name) {
  static const auto operations = all_operations();
  const auto found = operations.find(name);
  return found == operations.end() ? nullptr : found->second;
}

}  // namespace ddp::detail
