#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// Saved states of its parameters from which a server can resume.
struct ResumePoints {
  /// Number of updates in each state; newest first.
  std::vector<int64_t> updates;
  std::string problem = "";  ///< why no state could be read, or ""
  /// Number of the training that wrote the states; a new number if there are
  /// none.
  int64_t run = 0;
};

/// Returns a random number that identifies a training.
int64_t new_run();

/// Convert resume points to a text and back.
std::string to_text(const ResumePoints& saved);
ResumePoints resume_points_of_text(const std::string& text);

/// The states from which the servers resume. Empty: all start from the
/// beginning.
struct ResumePlan {
  std::vector<int64_t> updates;  ///< by server
  /// Why the servers cannot resume, in one line, or "".
  std::string problem = "";
  int64_t run = 0;  ///< number of the training
};

/// Chooses the states from which the servers resume. All states must belong to
/// one training. Synchronous servers resume from the newest update that all
/// have saved; asynchronous servers each resume from their newest update. Pure.
ResumePlan plan_resume(const std::vector<ResumePoints>& servers,
                       UpdateMode mode);

}  // namespace dp::detail
