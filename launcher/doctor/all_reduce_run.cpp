#include "launcher/doctor/all_reduce_run.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "launcher/process/process.h"
#include "launcher/shortened.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeLimitSeconds = 120;
constexpr int kGraceSeconds = 5;
constexpr size_t kMostOfHelper = 1 << 20;

struct Ended {
  std::string out;
  std::string err;
};

/// The options of the ddprun that started us are not the job's.
Environment without_own_options(Environment environment) {
  for (auto entry = environment.begin(); entry != environment.end();) {
    entry = entry->first.rfind("PET_", 0) == 0 ? environment.erase(entry)
                                               : std::next(entry);
  }
  environment["LOGLEVEL"] = "WARNING";
  return environment;
}

/// False at the end of the stream.
bool read_some(Fd& stream, std::string& text) {
  std::array<char, 16 * 1024> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(stream.get(), piece.data(), piece.size()); });
  if (size > 0 && text.size() < kMostOfHelper) {
    text.append(piece.data(), static_cast<size_t>(size));
  }
  return size > 0;
}

/// Until both streams are at their end, or the time is over.
void read_streams(Fd& out, Fd& err, Ended& ended, Clock::time_point end) {
  while (out || err) {
    std::array<pollfd, 2> ready{pollfd{out.get(), POLLIN, 0},
                                pollfd{err.get(), POLLIN, 0}};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) {
      return;
    }
    retry_interrupted([&] {
      return ::poll(ready.data(), ready.size(), static_cast<int>(left.count()));
    });
    if (ready[0].revents != 0 && !read_some(out, ended.out)) {
      out.reset();
    }
    if (ready[1].revents != 0 && !read_some(err, ended.err)) {
      err.reset();
    }
  }
}

Ended run(const std::string& path,
          const std::vector<std::string>& argv,
          const Environment& environment) {
  const OwnSettings settings;
  const Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const InheritedVariables inherited(environment);
  const Execution execution(path, argv, inherited, {}, {});
  Process process({.execution = &execution,
                   .settings = &settings,
                   .stdin_fd = input.get(),
                   .stdout_fd = out.write.get(),
                   .stderr_fd = err.write.get(),
                   .error_fd = err.write.get()});
  out.write.reset();
  err.write.reset();
  Ended ended;
  // ddprun keeps the limit by itself: this is for one that hangs.
  read_streams(out.read,
               err.read,
               ended,
               Clock::now() +
                   std::chrono::seconds(kTimeLimitSeconds + 3 * kGraceSeconds));
  if (out.read || err.read) {
    process.signal_group(SIGKILL);
  }
  process.reap();
  return ended;
}

/// The line of stderr that says most: the loader's, which cannot find LibTorch,
/// else ddprun's own.
std::string reason_in(const std::string& err) {
  constexpr size_t kMost = 500;
  for (const char* mark :
       {"error while loading shared libraries", "ddprun: "}) {
    const size_t at = err.find(mark);
    if (at != std::string::npos) {
      const size_t begin = err.rfind('\n', at) + 1;  // npos + 1 is 0
      return shortened(err.substr(begin, err.find('\n', at) - begin), kMost);
    }
  }
  return "it ended without a result";
}

}  // namespace

AllReduceFacts run_all_reduce(int worker_count,
                              const Environment& environment) {
  std::error_code error;
  const std::filesystem::path own =
      std::filesystem::read_symlink("/proc/self/exe", error);
  AllReduceFacts facts;
  facts.path = own.parent_path() / "ddprun-allreduce";
  if (::access(facts.path.c_str(), X_OK) != 0) {
    return facts;
  }
  const Ended ended = run(own,
                          {own,
                           "--nproc-per-node=" + std::to_string(worker_count),
                           "--no-cluster",
                           "--line-prefix=",
                           "--time-limit=" + std::to_string(kTimeLimitSeconds),
                           "--grace-period=" + std::to_string(kGraceSeconds),
                           facts.path},
                          without_own_options(environment));
  AllReduceFacts told = parse_all_reduce(ended.out);
  told.is_installed = true;
  told.path = facts.path;
  if (told.seconds == 0 && told.error.empty()) {
    told.error = reason_in(ended.err);
  }
  return told;
}

}  // namespace launcher
