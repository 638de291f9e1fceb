#include "launcher/doctor/all_reduce_run.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>

#include "launcher/base/text.h"
#include "launcher/machine/command.h"

namespace launcher {
namespace {

constexpr std::chrono::seconds kTimeLimit{120};
constexpr std::chrono::seconds kTimeToStop{20};
constexpr size_t kMostOutput = 64 << 20;

/// Returns the path of this program.
std::string own_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

/// Returns `environment` without the options of this ddprun (PET_...), which do
/// not apply to the doctor's job.
Environment without_own_options(Environment environment) {
  for (auto entry = environment.begin(); entry != environment.end();) {
    entry = entry->first.rfind("PET_", 0) == 0 ? environment.erase(entry)
                                               : std::next(entry);
  }
  environment["LOGLEVEL"] = "WARNING";
  return environment;
}

/// Returns the line of `err` that explains a failure best: the dynamic
/// loader's, else the last one of ddprun ("ddprun: ..."). Empty if there is
/// none.
std::string reason_in(const std::string& err) {
  constexpr size_t kMost = 500;
  constexpr std::string_view kOwn = "ddprun: ";
  const size_t loader = err.find("error while loading shared libraries");
  const size_t at = loader != std::string::npos ? loader : err.rfind(kOwn);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = err.rfind('\n', at) + 1;  // npos + 1 is 0
  return shortened(err.substr(begin, err.find('\n', at) - begin), kMost);
}

}  // namespace

AllReduceFacts run_all_reduce(int worker_count,
                              const Environment& environment) {
  AllReduceFacts facts;
  facts.path =
      std::filesystem::path(own_path()).parent_path() / "ddprun-allreduce";
  if (::access(facts.path.c_str(), X_OK) != 0) {
    return facts;
  }
  const CommandEnd end =
      run_command({.argv = {own_path(),
                            "--nproc-per-node=" + std::to_string(worker_count),
                            "--no-cluster",
                            "--output=inherit",
                            "--grace-period=5",
                            facts.path},
                   .environment = without_own_options(environment),
                   .limit = kTimeLimit,
                   .grace = kTimeToStop,
                   .most_bytes = kMostOutput,
                   .errors = CommandSpec::Errors::capture});
  AllReduceFacts told = parse_all_reduce(end.output);
  told.is_installed = true;
  told.path = facts.path;
  if (told.seconds == 0 && told.error.empty()) {
    const std::string reason = reason_in(end.errors);
    told.error = !end.status ? "it did not end in " +
                                   std::to_string(kTimeLimit.count()) + " s"
                 : reason.empty() ? "it ended without a result"
                                  : reason;
  }
  return told;
}

}  // namespace launcher
