#pragma once

#include <vector>

namespace launcher {

/// The signals that ask ddprun to end, and how often one has. SIGKILL is one:
/// it came to the guardian.
class StopSignals {
 public:
  explicit StopSignals(std::vector<int> numbers);

  /// Counts a signal. False, and not counted, when it is no stop signal.
  bool take(int number);

  bool have_come() const { return count_ > 0; }

  /// Two came from the keyboard, or SIGKILL: whoever sits there wants no grace.
  /// A terminal that closes sends several others by itself.
  bool are_impatient() const { return keyboard_count_ > 1 || has_killed_; }

 private:
  std::vector<int> numbers_;
  int count_ = 0;
  int keyboard_count_ = 0;
  bool has_killed_ = false;
};

}  // namespace launcher
