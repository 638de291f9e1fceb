#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Pure: error messages about a backward pass, made of all ranks' reports.
namespace ddp::detail {

/// A rank's status in a backward pass, as text for the other ranks. Names of
/// parameters are joined by ", "; see `PassStatus` for the fields.
struct PassReport {
  int64_t number = 0;  ///< 0 if the rank does not know
  int64_t without_step = 0;
  std::string missing;
  std::string frozen;
  std::string failure;
  std::string changed;
  std::string late;
};

std::string to_text(const PassReport& report);
PassReport parse_report(const std::string& text);

/// Error of a failed pass, or of ranks whose passes do not belong together.
/// `reports[r]` is rank r's, empty if it is not known. Never "".
std::string pass_error(const std::vector<PassReport>& reports);

/// Error of a pass that an exception has left on `rank`, as known there.
std::string failure_error(int rank, const std::string& failure);

/// Error of a pass in which gradients of another reducer were added.
std::string crossed_error();

/// Error of an earlier pass in which the ranks did not agree.
/// @param when  end of the sentence "... before `when`".
/// @param departure  the rank that has left because of it, or where to look.
std::string disagreement_error(const std::string& when,
                               const std::string& departure);

/// Error of a last pass that another rank has left before its end.
std::string unfinished_error(const std::string& departure);

}  // namespace ddp::detail
