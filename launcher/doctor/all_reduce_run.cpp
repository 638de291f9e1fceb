#include "launcher/doctor/all_reduce_run.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "launcher/doctor/job_output.h"
#include "launcher/options/options.h"

namespace launcher {
namespace {

constexpr int kTimeLimitSeconds = 120;
constexpr int kGraceSeconds = 5;

}  // namespace

AllReduceFacts run_all_reduce(int worker_count,
                              const Environment& environment) {
  AllReduceFacts facts;
  facts.path =
      std::filesystem::path(own_path()).parent_path() / "ddprun-allreduce";
  if (::access(facts.path.c_str(), X_OK) != 0) {
    return facts;
  }
  const auto parsed =
      parse_options({"--nproc-per-node=" + std::to_string(worker_count),
                     "--no-cluster",
                     "--line-prefix=",
                     "--time-limit=" + std::to_string(kTimeLimitSeconds),
                     "--grace-period=" + std::to_string(kGraceSeconds),
                     facts.path},
                    {});
  // The job has its own time limit; this limit is for a ddprun that hangs.
  const JobOutput output =
      run_job(std::get<LaunchOptions>(parsed),
              without_own_options(environment),
              std::chrono::seconds(kTimeLimitSeconds + 3 * kGraceSeconds));
  AllReduceFacts told = parse_all_reduce(output.out);
  told.is_installed = true;
  told.path = facts.path;
  if (told.seconds == 0 && told.error.empty()) {
    const std::string reason = reason_in(output.err);
    told.error = reason.empty() ? "it ended without a result" : reason;
  }
  return told;
}

}  // namespace launcher
