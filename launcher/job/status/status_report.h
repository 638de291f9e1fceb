#pragma once

#include <string>
#include <vector>

#include "launcher/job/status/job_status.h"
#include "launcher/options/status_options.h"

namespace launcher {

/// What the status files of jobs say.
struct StatusAnswers {
  struct Silent {
    std::string file;
    pid_t pid = 0;  ///< the supervisor; 0: not known
  };

  std::vector<JobStatus> jobs;
  std::vector<Silent> silent;  ///< jobs that live and do not renew their file
  std::vector<std::string> stale;  ///< files of a ddprun that was killed
};

/// Whether `job` is its id or one of its processes; all are where it is empty.
/// Pure.
bool is_asked_for(const JobStatus& status, const std::string& job);

/// What `ddprun --status` prints. With --json an object with `jobs` (see
/// status_json.h), `silent` (file and pid) and `stale` (files). Pure.
///
/// @throws LaunchError where the job that is asked for is not among them
std::string status_report(const StatusAnswers& answers,
                          const StatusOptions& options);

}  // namespace launcher
