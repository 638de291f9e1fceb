#pragma once

#include <optional>
#include <string>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "ddp/exported/json_value.h"

namespace ddp::detail {

/// What a call of an operator does with the mode of the module.
enum class ModeUse {
  ignores,  ///< the same in train() and in eval()
  follows,  ///< `value_in_eval` holds in eval()
  unknown   ///< the file does not say
};

/// A norm without running statistics ignores the mode. A call in a module of
/// torch.nn follows it, and so does the one call of its operator in a line of
/// Python that reads `self.training`.
ModeUse mode_use(const c10::FunctionSchema& schema, const JsonValue& node);

/// The value of an operator's argument in eval(), if eval() may change it.
std::optional<c10::IValue> value_in_eval(const c10::Argument& parameter);

/// Returns the line of Python that calls the node, as the file quotes it.
std::string line_of(const JsonValue& node);

}  // namespace ddp::detail
