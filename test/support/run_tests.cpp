#define CATCH_CONFIG_RUNNER
#include "test/support/run_tests.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "test/support/listener.h"

namespace {

using ddp::test::Listener;

/// Below the time-outs of ctest, which name only the program and not the test.
constexpr unsigned kLimitSeconds = 280;

/// Returns the time limit. DDP_TEST_SECONDS sets another one, for long manual
/// runs; 0: no limit.
unsigned limit_seconds() {
  const char* asked = std::getenv("DDP_TEST_SECONDS");
  return asked != nullptr ? static_cast<unsigned>(std::atoi(asked))
                          : kLimitSeconds;
}

void abort_test(int) {
  constexpr char kText[] = "a test has not ended within its time limit\n";
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  std::abort();
}

void die_with_stack(int signal) {
  std::array<void*, 64> frames{};
  const int count = ::backtrace(frames.data(), frames.size());
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Catch2 names the test that a signal ends, and then raises the signal again
/// for this handler, on the same stack. Sanitizers have handlers of their own.
void print_stack_at(int signal) {
  struct sigaction previous {};
  ::sigaction(signal, nullptr, &previous);
  if (previous.sa_handler == SIG_DFL) {
    std::signal(signal, die_with_stack);
  }
}

// Uses a timer of the process instead of a thread: tests fork, which threads
// would make unsafe, and a forked process does not inherit the timer.
class TimeLimit : public Listener {
 public:
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    Listener::testCaseStarting(test);
    std::signal(SIGALRM, abort_test);
    ::alarm(limit_seconds());
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ::alarm(0);
    Listener::testCaseEnded(stats);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(TimeLimit)

namespace ddp::test {

int run_tests(int argc, char** argv, const std::string& prefix) {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads its library, which no handler may
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    print_stack_at(signal);
  }
  Catch::Session session;
  if (const int error = session.applyCommandLine(argc, argv); error != 0) {
    return error;
  }
  auto& tests = session.configData().testsOrTags;
  if (tests.empty() && !prefix.empty()) {
    tests.emplace_back();
  }
  for (auto& test : tests) {
    test.insert(0, prefix);
  }
  return session.run();
}

}  // namespace ddp::test
