#include "ddp/job/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "ddp/base/child_process.h"
#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/file_descriptor.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/error_text.h"

namespace ddp {
namespace {

using detail::retry_interrupted;

constexpr int kKillMilliseconds = 10'000;

/// An exception that left the function of a rank. A pipe keeps messages of this
/// size whole, in the order of the exceptions.
struct Message {
  int rank = 0;
  std::array<char, PIPE_BUF - sizeof(int)> text{};
};

void flush_streams() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

/// Ranks that are forks of this process.
class Ranks {
 public:
  // Writes may block, so that no message is lost; reads end after the last one.
  Ranks() { ::fcntl(errors_.read.get(), F_SETFL, O_NONBLOCK); }
  /// Kills the ranks that still run.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Starts the next rank.
  void start(const std::function<void(int rank)>& function);
  /// Waits until all ranks have ended, or throws when one has failed.
  void wait();

 private:
  struct Process {
    pid_t pid;
    detail::FileDescriptor pidfd;  // readable once the process has ended
    bool is_running = true;
  };

  [[noreturn]] void run(const std::function<void(int)>& function, int rank);
  std::map<int, std::string> reap();
  std::string find_failure();

  std::vector<Process> processes_;
  detail::Pipe errors_ = detail::make_pipe();
};

Ranks::~Ranks() {
  for (const auto& process : processes_) {
    if (process.is_running) {
      ::kill(process.pid, SIGKILL);
    }
  }
  for (const auto& process : processes_) {
    if (process.is_running) {
      pollfd ended{process.pidfd.get(), POLLIN, 0};
      retry_interrupted([&] { return ::poll(&ended, 1, kKillMilliseconds); });
      ::waitpid(process.pid, nullptr, WNOHANG);
    }
  }
}

void Ranks::run(const std::function<void(int)>& function, int rank) {
  int code = 0;
  try {
    function(rank);
  } catch (...) {
    Message message{rank};
    detail::text_of(std::current_exception())
        .copy(message.text.data(), message.text.size() - 1);
    retry_interrupted([&] {
      return ::write(errors_.write.get(), &message, sizeof(message));
    });
    code = 1;
  }
  flush_streams();
  ::_exit(code);
}

void Ranks::start(const std::function<void(int)>& function) {
  flush_streams();  // or the rank would print it, too
  const pid_t pid = detail::fork_child();
  if (pid == 0) {
    run(function, static_cast<int>(processes_.size()));
  }
  processes_.push_back({pid, detail::open_pidfd(pid)});
  detail::check(
      processes_.back().pidfd.get(),
      "cannot watch a rank (needs Linux 5.3, and SIGCHLD not ignored)");
}

/// Returns the failures, by rank, of ranks that have ended since the last call.
std::map<int, std::string> Ranks::reap() {
  std::map<int, std::string> failed;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    auto& process = processes_[rank];
    if (!process.is_running) {
      continue;
    }
    siginfo_t end{};
    const int result = ::waitid(
        P_PID, static_cast<id_t>(process.pid), &end, WEXITED | WNOHANG);
    process.is_running = result == 0 && end.si_pid == 0;
    TORCH_CHECK(result == 0,
                "Expected to learn how rank ",
                rank,
                " ended, but SIGCHLD is ignored, or other code of this process "
                "has waited for the rank; call signal(SIGCHLD, SIG_DFL), or "
                "let the other code wait for its own children alone");
    if (end.si_pid == 0 || end.si_status == 0) {
      continue;
    }
    failed[static_cast<int>(rank)] =
        end.si_code == CLD_EXITED
            ? "exited with code " + std::to_string(end.si_status)
            : "was ended by signal " + std::to_string(end.si_status) + " (" +
                  ::strsignal(end.si_status) + ")";
  }
  return failed;
}

/// Returns the failure of the first rank that failed, or "".
std::string Ranks::find_failure() {
  auto failed = reap();
  if (failed.empty()) {
    return "";
  }
  std::string thrown;
  for (Message message; ::read(errors_.read.get(), &message, sizeof(message)) ==
                        sizeof(message);) {
    if (thrown.empty()) {
      thrown = "rank " + std::to_string(message.rank) +
               " threw: " + message.text.data();
    }
    failed.erase(message.rank);
  }
  // The end of a rank makes others throw, so an end without an exception is the
  // cause.
  return failed.empty() ? thrown
                        : "rank " + std::to_string(failed.begin()->first) +
                              " " + failed.begin()->second;
}

void Ranks::wait() {
  while (true) {
    std::vector<pollfd> running;
    for (const auto& process : processes_) {
      if (process.is_running) {
        running.push_back({process.pidfd.get(), POLLIN, 0});
      }
    }
    if (running.empty()) {
      return;
    }
    ::poll(running.data(), running.size(), -1);
    const auto failure = find_failure();
    if (!failure.empty()) {
      throw c10::Error(failure);  // without the backtrace of this process
    }
  }
}

void enter_rank(const detail::LaunchEnvironment& environment) {
  for (const auto& [name, value] : environment) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  // OpenMP has read its variable already. If the parent has a pool of one
  // thread, the child makes a new pool. Several threads that make it at once
  // would abort LibTorch, so this thread makes it now.
  if (environment.count("OMP_NUM_THREADS") > 0 || at::get_num_threads() == 1) {
    at::set_num_threads(1);
  }
}

/// Counts the threads of this process. A thread that was joined a moment ago
/// may still be among them, so more than one thread are counted again.
size_t count_threads() {
  constexpr std::chrono::seconds kPatience{1};
  constexpr std::chrono::milliseconds kPause{1};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    // The folder has two links and one for each thread.
    const size_t threads =
        std::filesystem::hard_link_count("/proc/self/task") - 2;
    if (threads <= 1 || std::chrono::steady_clock::now() >= deadline) {
      return threads;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

void spawn(const std::function<void(int)>& function, int nprocs) {
  TORCH_CHECK(function != nullptr,
              "Expected a function to spawn, but got an empty one");
  TORCH_CHECK(nprocs > 0,
              "Expected at least one process to spawn, but got nprocs=",
              nprocs);
  const auto threads = count_threads();
  TORCH_CHECK(threads <= 1,
              "Expected a process with one thread to fork ranks from, but got ",
              threads,
              ": threads of OpenMP, CUDA or Gloo do not survive a fork; spawn "
              "before the first tensor operation, or start the ranks with "
              "ddprun");
  auto port = detail::reserve_loopback_port();
  TORCH_CHECK(port.error == 0,
              "Cannot reserve a port of 127.0.0.1 for MASTER_PORT: ",
              std::strerror(port.error));
  Ranks ranks;
  for (int i = 0; i < nprocs; ++i) {
    ranks.start([&](int rank) {
      port.socket = {};  // rank 0 listens on this port
      enter_rank(detail::launch_environment(
          detail::local_worker(rank, nprocs, port.port, "spawn"), std::getenv));
      function(rank);
    });
  }
  ranks.wait();
}

}  // namespace ddp
