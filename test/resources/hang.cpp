// hang HOW: in the first attempt rank 1 hangs, and the other ranks wait for it
// in a collective. HOW is spin, sleep, stop, deadlock, or collective (all ranks
// wait in the same collective). Later attempts succeed.
//
// hang evaluate SECONDS | first SECONDS: rank 1 needs SECONDS for an evaluation
// that it has announced, or for its first step, and the other ranks wait for
// it.
//
// hang save: as hang HOW, but rank 1 hangs in a save announced to take one
// second.
//
// hang never: makes 20 steps within a second, and prints its process id after
// the second step.
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <string>

#include "child.h"
#include "ddp/base/job_files/job_directory.h"
#include "ddp/progress.h"

void report(const std::string& text) {
  std::ofstream(ddp::detail::own_job_files().progress) << text << "\n";
}

void hang(const std::string& how) {
  if (how == "spin") {
    for (volatile bool forever = true; forever;) {
    }
  }
  if (how == "stop") {
    raise(SIGSTOP);
  }
  if (how == "deadlock") {
    std::promise<void> never;
    never.get_future().wait();
  }
  sleep(3600);
}

[[gnu::noinline, noreturn]] void wait_for_ever() {
  for (;;) {
    pause();
  }
}

void be_slow(const std::string& seconds) {
  usleep(static_cast<useconds_t>(std::stod(seconds) * 1e6));
}

void make_steps() {
  for (int step = 1; step <= 20; ++step) {
    report("step " + std::to_string(step));
    usleep(50'000);
    if (step == 2) {
      say(("pid " + std::to_string(getpid())).c_str());
    }
  }
}

[[noreturn]] void save() {
  const ddp::QuietGuard quiet(std::chrono::seconds(1), "saving");
  wait_for_ever();
}

int main(int count, char** argv) {
  const std::string how = argv[1];
  if (how == "never") {
    make_steps();
    return 0;
  }
  const bool is_culprit = rank() == 1;
  report("collectives=0 starting");
  if (count > 2) {
    if (how == "evaluate") {
      report("collectives=1 step 1");
      usleep(100'000);  // so that ddprun reads both reports
      report(is_culprit ? "collectives=1 evaluating limit=100"
                        : "collectives=2 waits=1 step 2");
    }
    be_slow(argv[2]);
    report("collectives=2 step 2");
    return 0;
  }
  if (attempt() > 0) {
    return 0;
  }
  ddp::report_progress();
  usleep(100'000);
  if (is_culprit && how == "save") {
    save();
  }
  if (is_culprit || how == "collective") {
    report(how == "stop" || how == "collective"
               ? "collectives=4 waits=1 step 3"
               : "collectives=3 waits=0 step 3");
  } else {
    report("collectives=4 waits=1 step 3");
  }
  if (is_culprit) {
    hang(how);
  }
  wait_for_ever();
}
