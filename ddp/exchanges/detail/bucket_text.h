#pragma once

#include <string>

#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Returns text for error messages: "gradient bucket 1 of 2", counted from 1.
std::string bucket_text(const GradientBucket& bucket);

/// Returns the same text with the names of up to three parameters: "gradient
/// bucket 1 of 2 (last.weight, last.bias and 3 more)".
std::string bucket_text_with_names(const GradientBucket& bucket);

}  // namespace ddp::detail
