#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddp/exported/graph.h"

namespace ddp::detail {

/// Computes a number from the inputs of a program.
using Expression = std::function<c10::IValue(const Values& inputs)>;

/// Returns the value of a name of an expression, or null for an unknown one:
/// {"L", "x", "0", "key"} for L['x'][0]['key'].
using FindName = std::function<Expression(const std::vector<std::string>&)>;

/// Parses an expression over sizes as torch.export writes them: in Python,
/// (L['x'].size()[0] % 2) == 0, and of sympy, Mul(Integer(2), x.size()[0]).
/// Numbers compute as in Python, by `number_operation`.
/// @throws c10::Error for other text, also for chains of comparisons, and for
///   text that is long or nested deeply.
Expression parse_expression(const std::string& text, const FindName& find);

}  // namespace ddp::detail
