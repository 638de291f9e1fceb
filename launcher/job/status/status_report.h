#pragma once

#include <string>
#include <vector>

#include "launcher/job/status/job_status.h"
#include "launcher/options/status_options.h"

namespace launcher {

/// Contents of the status files found.
struct StatusAnswers {
  struct Silent {
    std::string file;
    pid_t pid = 0;  ///< the supervisor; 0: unknown
  };

  std::vector<JobStatus> jobs;
  std::vector<Silent> silent;      ///< live jobs that do not renew their file
  std::vector<std::string> stale;  ///< files of killed ddprun processes
};

/// Returns whether `job` is the job's run id or one of its process ids, or is
/// empty. Pure function.
bool is_asked_for(const JobStatus& status, const std::string& job);

/// Returns the output of `ddprun --status`. With --json an object with `jobs`
/// (see status_json.h), `silent` (file and pid) and `stale` (files). Pure
/// function.
///
/// @throws LaunchError if the requested job is not among them
std::string status_report(const StatusAnswers& answers,
                          const StatusOptions& options);

}  // namespace launcher
