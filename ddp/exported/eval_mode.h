#pragma once

#include <optional>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "ddp/exported/json_value.h"

namespace ddp::detail {

/// Whether a call of an operator computes the same in train() and in eval(): a
/// norm without running statistics, and dropout that the line of Python in the
/// file turns on by its default or by a literal, as F.dropout(x) does.
bool ignores_mode(const c10::FunctionSchema& schema, const JsonValue& node);

/// The value of an operator's argument in eval(), if eval() changes it.
std::optional<c10::IValue> value_in_eval(const c10::Argument& parameter);

}  // namespace ddp::detail
