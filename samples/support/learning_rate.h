#pragma once

#include <cstdint>

namespace samples {

/// Cosine decay: from `peak` at step 0 to nearly 0 at the last of `steps`.
///
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.
double cosine_learning_rate(double peak, int64_t step, int64_t steps);

}  // namespace samples
