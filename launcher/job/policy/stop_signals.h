#pragma once

#include <vector>

namespace launcher {

/// Counts the signals that ask ddprun to end.
class StopSignals {
 public:
  explicit StopSignals(std::vector<int> numbers);

  /// Counts a stop signal. Returns false, without counting, for any other
  /// signal.
  bool count(int number);

  /// As `count`, while no worker could handle the signal instead: SIGINT,
  /// SIGQUIT, SIGTERM and SIGHUP, too, are stop signals then.
  bool count_without_workers(int number);

  bool have_come() const { return count_ > 0; }

  /// Returns whether the workers get no grace period: after two signals from
  /// the keyboard (SIGINT, SIGQUIT). Other stop signals do not count, because a
  /// closing terminal sends several of them by itself.
  bool allow_no_grace() const { return keyboard_count_ > 1; }

 private:
  void add(int number);

  std::vector<int> numbers_;
  int count_ = 0;
  int keyboard_count_ = 0;
};

}  // namespace launcher
