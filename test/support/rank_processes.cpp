#include "test/support/rank_processes.h"

#include <csignal>
#include <cstdlib>
#include <deque>

#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/current_job.h"
#include "ddp/job/detail/forked_process.h"

namespace ddp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

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
}

RankEnd end_of(const detail::ProcessEnd& end) {
  return {end.exception ? end.exception->text : "", end.exit_code, end.signal};
}

}  // namespace

std::vector<RankEnd> run_rank_processes(
    int size,
    const std::function<void(int rank)>& body,
    milliseconds patience) {
  auto reserved = detail::reserve_loopback_port();
  std::deque<detail::ForkedProcess> processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.emplace_back(
        [&, rank] {
          reserved.socket = {};  // frees the port, on which rank 0 will listen
          enter(rank, size, reserved.port);
          body(rank);
          return 0;
        },
        &detail::report_fatal_error);  // as in ddp::spawn
  }
  std::vector<RankEnd> ends(static_cast<size_t>(size));
  const auto deadline = steady_clock::now() + patience;
  for (int running = size; running > 0;) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - steady_clock::now());
    detail::wait_for_any(processes, std::max(left, milliseconds(0)));
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      if (processes[rank].is_reaped()) {
        continue;
      }
      if (const auto end = processes[rank].reap()) {
        ends[rank] = end_of(*end);
        --running;
      } else if (left <= milliseconds(0)) {
        processes[rank].signal(SIGKILL);
        ends[rank].error = "still ran";
        --running;
      }
    }
  }
  return ends;
}

}  // namespace ddp::test
