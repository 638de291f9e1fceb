#include "launcher/doctor/all_reduce.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <type_traits>

#include "ddp/base/text/number.h"
#include "launcher/base/text.h"
#include "launcher/machine/command.h"

namespace launcher {
namespace {

constexpr std::chrono::seconds kTimeLimit{120};
constexpr std::chrono::seconds kTimeToStop{20};

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
  environment["LOGLEVEL"] = "ERROR";  // a warning is no reason
  return environment;
}

/// Returns the line that explains a failure best: the dynamic loader's, else
/// the last one of ddprun ("ddprun: ..."). Empty if there is none.
std::string reason_in(const std::string& output) {
  constexpr size_t kMost = 500;
  constexpr std::string_view kOwn = "ddprun: ";
  const size_t loader = output.find("error while loading shared libraries");
  const size_t at = loader != std::string::npos ? loader : output.rfind(kOwn);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = output.rfind('\n', at) + 1;  // npos + 1 is 0
  return shortened(output.substr(begin, output.find('\n', at) - begin), kMost);
}

}  // namespace

AllReduceFacts parse_all_reduce(std::string_view text) {
  AllReduceFacts facts;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      continue;
    }
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    const auto take = [&](const char* known, auto& field) {
      if (name == known) {
        using Number = std::decay_t<decltype(field)>;
        field = ddp::detail::parse_number<Number>(value).value_or(field);
      }
    };
    if (name == "libtorch") {
      facts.libtorch = value;
    } else if (name == "backend") {
      facts.backend = value;
    } else if (name == "error" && facts.error.empty()) {
      facts.error = value;  // errors of other ranks follow from the first
    }
    take("cuda", facts.cuda);
    take("nccl", facts.nccl);
    take("nccl_built", facts.nccl_built);
    take("devices", facts.devices);
    take("ranks", facts.ranks);
    take("bytes", facts.bytes);
    take("seconds", facts.seconds);
  }
  return facts;
}

double bus_bandwidth(const AllReduceFacts& facts) {
  if (facts.ranks < 1 || facts.seconds <= 0) {
    return 0;
  }
  const double ranks = facts.ranks;
  return 2 * (ranks - 1) / ranks * static_cast<double>(facts.bytes) /
         facts.seconds;
}

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
                            "--standalone",
                            "--output=inherit",
                            "--grace-period=5",
                            facts.path},
                   .environment = without_own_options(environment),
                   .limit = kTimeLimit,
                   .grace = kTimeToStop});
  AllReduceFacts told = parse_all_reduce(end.output);
  told.is_installed = true;
  told.path = facts.path;
  if (told.seconds == 0 && told.error.empty()) {
    const std::string reason = reason_in(end.output);
    told.error = !end.status ? "it did not end in " +
                                   std::to_string(kTimeLimit.count()) + " s"
                 : reason.empty() ? "it ended without a result"
                                  : reason;
  }
  return told;
}

}  // namespace launcher
