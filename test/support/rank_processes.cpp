#include "test/support/rank_processes.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <ATen/Parallel.h>

#include "ddp/base/child_process.h"
#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/file_descriptor.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "test/support/temporary_folder.h"

namespace ddp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct RankProcess {
  pid_t pid;
  detail::FileDescriptor pidfd;  // readable once the process has ended
  detail::FileDescriptor error;  // memory file with the exception's text
};

/// Restores the default actions of signals: ranks must not inherit Catch2's
/// signal reports or the tests' time limit.
void restore_signals() {
  for (const int number :
       {SIGABRT, SIGALRM, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM}) {
    ::signal(number, SIG_DFL);
  }
}

void enter(int rank, int size, int port) {
  restore_signals();
  const auto worker = detail::local_worker(rank, size, port, "processes");
  for (const auto& [name, value] :
       detail::launch_environment(worker, std::getenv)) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  at::set_num_threads(1);  // as ddp::spawn does
}

void flush_streams() {
  std::cout.flush();
  std::fflush(nullptr);
}

/// Runs `body` in a fork of this process.
RankProcess start(const std::function<void()>& body) {
  flush_streams();  // or the rank would print it, too
  detail::FileDescriptor error(
      detail::check(::memfd_create("error", MFD_CLOEXEC), "memfd_create"));
  const pid_t pid = detail::fork_child();
  if (pid != 0) {
    return {pid, detail::open_pidfd(pid), std::move(error)};
  }
  int code = 0;
  try {
    body();
  } catch (...) {
    const auto text = detail::text_of(std::current_exception());
    detail::check(::write(error.get(), text.data(), text.size()), "write");
    detail::report_fatal_error(text);  // as ddp does if nothing catches it
    code = 1;
  }
  flush_streams();
  ::_exit(code);
}

/// Waits for the end of a rank. Kills it at the deadline.
RankEnd wait_for(const RankProcess& process,
                 steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  pollfd ended{process.pidfd.get(), POLLIN, 0};
  const bool in_time =
      detail::retry_interrupted([&] {
        return ::poll(&ended, 1, std::max(static_cast<int>(left.count()), 0));
      }) > 0;
  if (!in_time) {
    ::kill(process.pid, SIGKILL);
  }
  int status = 0;
  detail::retry_interrupted([&] { return ::waitpid(process.pid, &status, 0); });
  if (!in_time) {
    return {"still ran", 0, 0};
  }
  return {read_file("/proc/self/fd/" + std::to_string(process.error.get())),
          WIFEXITED(status) ? WEXITSTATUS(status) : 0,
          WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

}  // namespace

std::vector<RankEnd> run_rank_processes(
    int size,
    const std::function<void(int rank)>& body,
    milliseconds patience) {
  return run_jobs(
      1, size, [&](int /*job*/, int rank) { body(rank); }, patience)[0];
}

std::vector<std::vector<RankEnd>> run_jobs(
    int jobs,
    int size,
    const std::function<void(int job, int rank)>& body,
    milliseconds patience) {
  std::vector<detail::ReservedPort> reserved;
  for (int job = 0; job < jobs; ++job) {
    reserved.push_back(detail::reserve_loopback_port());
  }
  std::vector<RankProcess> processes;
  for (int job = 0; job < jobs; ++job) {
    for (int rank = 0; rank < size; ++rank) {
      processes.push_back(start([&] {
        const int port = reserved[static_cast<size_t>(job)].port;
        reserved.clear();  // frees the port, on which rank 0 will listen
        enter(rank, size, port);
        body(job, rank);
      }));
    }
  }
  std::vector<std::vector<RankEnd>> ends(static_cast<size_t>(jobs));
  const auto deadline = steady_clock::now() + patience;
  for (size_t i = 0; i < processes.size(); ++i) {
    ends[i / static_cast<size_t>(size)].push_back(
        wait_for(processes[i], deadline));
  }
  return ends;
}

}  // namespace ddp::test
