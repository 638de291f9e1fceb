// main() of the test programs, with a limit on the time of a test: one that
// hangs ends its program, and Catch2 then says which it was.
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using Listener = Catch::EventListenerBase;
int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
#endif

namespace {

/// Below the time-outs of ctest, which name only the program.
constexpr unsigned kLimitSeconds = 280;

void give_up(int) {
  constexpr char kText[] = "a test has not ended within its time limit\n";
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  std::abort();
}

// A timer of the process and no thread: tests fork, which a thread would
// forbid, and a forked process does not inherit it.
class TimeLimit : public Listener {
 public:
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    Listener::testCaseStarting(test);
    std::signal(SIGALRM, give_up);
    ::alarm(kLimitSeconds);
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ::alarm(0);
    Listener::testCaseEnded(stats);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(TimeLimit)
