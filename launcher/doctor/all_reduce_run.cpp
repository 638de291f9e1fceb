#include "launcher/doctor/all_reduce_run.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "launcher/doctor/job_output.h"
#include "launcher/options/options.h"

namespace launcher {
namespace {

constexpr std::chrono::seconds kTimeLimit{120};

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
                     "--output=inherit",
                     "--grace-period=5",
                     facts.path},
                    {});
  const JobOutput output = run_job(std::get<LaunchOptions>(parsed),
                                   without_own_options(environment),
                                   kTimeLimit);
  AllReduceFacts told = parse_all_reduce(output.out);
  told.is_installed = true;
  told.path = facts.path;
  if (told.seconds == 0 && told.error.empty()) {
    const std::string reason = reason_in(output.err);
    told.error = output.is_late ? "it did not end in " +
                                      std::to_string(kTimeLimit.count()) + " s"
                 : reason.empty() ? "it ended without a result"
                                  : reason;
  }
  return told;
}

}  // namespace launcher
