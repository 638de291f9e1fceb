#pragma once

#include "test/ddp/random_programs/learner.h"

namespace ddp::test {

/// What a GradScaler of one rank does, by hand.
struct PlainScaler {
  double scale = kFirstScale;
  int good_steps = 0;

  /// Divides the gradients by the scale. @returns whether one is not finite.
  bool unscale(const Learner& learner) const;
  /// After a step that was left out, or not.
  void update(bool is_left_out);
};

}  // namespace ddp::test
