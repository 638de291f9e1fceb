#pragma once

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// Reference implementation of one rank's GradScaler.
struct PlainScaler {
  double scale = kFirstScale;
  int good_steps = 0;

  /// Divides the gradients by the scale.
  /// @returns whether a gradient is not finite.
  bool unscale(const Learner& learner) const;
  /// Updates the scale after a step that was made or left out.
  void update(bool is_left_out);
};

}  // namespace ddp::test
