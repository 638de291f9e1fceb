#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// Which states of its parameters a server could go on from.
struct ResumePoints {
  std::vector<int64_t> updates;  ///< made before each; the newest first
  std::string problem = "";      ///< why they cannot be read, if they cannot
  /// The training that made the states; a new number where there are none.
  int64_t run = 0;
};

/// A number for a training that no other one has.
int64_t new_run();

/// As one line, and back.
std::string write_saved(const ResumePoints& saved);
ResumePoints read_saved(const std::string& line);

/// Where each server goes on: empty for the start.
struct ResumePlan {
  std::vector<int64_t> updates;  ///< by server
  std::string problem = "";      ///< why they cannot; one line
  int64_t run = 0;               ///< the training that it is
};

/// Pure. All states must be of one training. Synchronous servers go on from the
/// newest update that all have saved, the others each from its newest.
ResumePlan plan_resume(const std::vector<ResumePoints>& servers,
                       UpdateMode mode);

}  // namespace dp::detail
