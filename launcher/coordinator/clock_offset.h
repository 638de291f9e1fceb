#pragma once

#include <chrono>
#include <optional>

namespace launcher {

/// A time by another host's clock, and how far it may be off to either side.
struct RemoteTime {
  std::chrono::nanoseconds at{0};  ///< since that clock's beginning
  std::chrono::nanoseconds error{0};
};

/// What another host's steady clock shows, from questions that it answered.
/// Pure.
///
/// An answer tells what that clock showed at some time between the question and
/// the answer's arrival: in the middle, with an error of half the time between
/// them, however unlike the two ways are. The answer that leaves the smallest
/// error counts. Errors grow by 200 us in a second, as two clocks drift apart.
/// An answer that contradicts the earlier ones tells of a clock that has stood
/// still, as that of a host that was suspended: it counts alone.
///
/// @code
/// clock.add(sent, shown, received);  // 10.000 s, 110 s, 10.004 s
/// clock.there(received);             // 110.002 s, to within 2.0008 ms
/// @endcode
class ClockOffset {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param sent,received by this host's clock
  /// @param shown by the other one between them
  void add(Time sent, std::chrono::nanoseconds shown, Time received);
  /// What the other clock shows when this one shows `here`; nothing before the
  /// first answer.
  std::optional<RemoteTime> there(Time here) const;
  /// The other host is another one.
  void forget() { best_.reset(); }

 private:
  struct Sample {
    Time here;         // when the answer came
    RemoteTime there;  // then
  };
  std::optional<Sample> best_;
};

}  // namespace launcher
