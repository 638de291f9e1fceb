#include "launcher/machine/pending_signal.h"

#include <unistd.h>

#include <csignal>

#include "test/support/catch.h"

using namespace launcher;

TEST_CASE("a signal is unheard as long as it is pending") {
  PendingSignal signal;
  CHECK(!signal.is_open());
  signal.set(SIGTERM);
  CHECK(signal.is_open());
  CHECK(signal.number() == SIGTERM);
  CHECK(signal.record_check(true) == 1);
  CHECK(signal.record_check(true) == 2);
  CHECK(signal.record_check(false) == 0);
  CHECK(!signal.is_open());
  signal.set(SIGINT);
  CHECK(signal.record_check(true) == 1);
}

TEST_CASE("pending signals in the text of /proc/PID/status") {
  const std::string text =
      "Name:\tddp\nThreads:\t1\nSigQ:\t1/9\nSigPnd:\t0000000000000002\n"
      "ShdPnd:\t0000000000004000\nSigBlk:\tffffffffffffffff\n";
  for (int number = 1; number <= 64; ++number) {
    CAPTURE(number);
    CHECK(is_pending(text, number) == (number == SIGINT || number == SIGTERM));
  }
  CHECK(!is_pending(std::string(), SIGTERM));
}

TEST_CASE("a signal that this process has blocked is pending for it") {
  sigset_t set;
  sigset_t old;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  sigprocmask(SIG_BLOCK, &set, &old);
  CHECK(!is_pending(::getpid(), SIGUSR2));
  ::kill(::getpid(), SIGUSR2);
  CHECK(is_pending(::getpid(), SIGUSR2));
  const timespec none{};
  CHECK(sigtimedwait(&set, nullptr, &none) == SIGUSR2);
  CHECK(!is_pending(::getpid(), SIGUSR2));
  sigprocmask(SIG_SETMASK, &old, nullptr);
}
