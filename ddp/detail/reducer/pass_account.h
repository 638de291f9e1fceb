#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::detail {

/// What one rank can say of a pass of its own.
struct PassAccount {
  int64_t number = 0;  ///< of reduced passes, this one included
  /// Passes before this one after which the parameters did not change.
  int64_t without_step = 0;
  /// Parameters without a gradient, in ascending order: those that should have
  /// had one, and those that are frozen.
  std::vector<size_t> missing;
  std::vector<size_t> frozen;

  /// The same on ranks that have stepped alike and have frozen the same
  /// parameters. Of others nearly never, when they differ by one step.
  uint16_t stamp() const;
};

/// The same in words, for the other ranks.
struct PassReport {
  int64_t number = 0;
  int64_t without_step = 0;
  std::string missing;  ///< names, joined by commas
  std::string frozen;
};

std::string to_text(const PassReport& report);
PassReport report_of(const std::string& text);

/// Pure: why these ranks' passes are no pass of one training, or what was
/// missing in it. `reports[r]` is rank r's. Never empty.
std::string pass_error(const std::vector<PassReport>& reports);

/// Pure: the error for parameters without a gradient, where this rank alone is
/// known.
std::string missing_error(int rank, const std::string& names);

}  // namespace ddp::detail
