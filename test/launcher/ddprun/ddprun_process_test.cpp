// The ends of processes: ddprun and its watcher, and processes that workers
// start.
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "launcher/base/fd.h"
#include "launcher/machine/cgroup.h"
#include "test/launcher/child_setup.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/sanitizers.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using Lines = std::vector<std::string>;
using namespace std::chrono_literals;

namespace {

/// Returns ddprun's watcher, and waits until it has its name.
pid_t watcher_of(const Ddprun& job) {
  const std::string folder = "/proc/" + std::to_string(job.pid());
  for (int look = 0; look < 20'000; ++look) {
    std::istringstream children(
        read_file(folder + "/task/" + std::to_string(job.pid()) + "/children"));
    for (pid_t child = 0; children >> child;) {
      if (read_file("/proc/" + std::to_string(child) + "/comm") ==
          "ddp-watcher\n") {
        return child;
      }
    }
    ::poll(nullptr, 0, 1);
  }
  throw std::runtime_error("waited 20 s for ddprun's watcher");
}

/// A process that the test's child starts before it becomes ddprun, like a
/// shell that starts a monitor in the background and then runs `exec ddprun`.
class Helper {
 public:
  /// Starts the helper. Called in the child; the helper's only open files are
  /// its pipes.
  void start(bool in_own_session) {
    if (::fork() != 0) {
      return;
    }
    if (in_own_session) {
      ::setsid();
    }
    ::dup2(leash_.read.get(), 0);
    ::dup2(sign_.write.get(), 1);
    ::syscall(SYS_close_range, 2, ~0U, 0);
    char byte = 0;
    ::_exit(::read(0, &byte, 1) == 0 ? 0 : 1);
  }

  /// Returns whether the helper still runs. It ends with this object, unless
  /// another process ends it before.
  bool lives() {
    sign_.write.reset();
    pollfd end{sign_.read.get(), POLLIN, 0};
    return ::poll(&end, 1, 0) == 0;
  }

 private:
  launcher::Pipe leash_ = launcher::make_pipe();
  launcher::Pipe sign_ = launcher::make_pipe();
};

}  // namespace

TEST_CASE("helpers from before ddprun's exec live on") {
  Helper helper;
  const bool in_own_session = GENERATE(false, true);
  const auto in_child = [&] { helper.start(in_own_session); };
  SECTION("whatever the workers leave") {
    const auto result = run_ddprun({"--max-restarts=1",
                                    "--grace-period=0.1",
                                    resource("spawn_grandchild"),
                                    "daemon",
                                    "3"},
                                   {},
                                   "",
                                   {},
                                   in_child);
    CHECK(result.code() == 3);
    CHECK_THAT(result.err, Contains("restart 1 of 1"));
    CHECK(!result.left_something);
  }
  SECTION("ddprun is killed") {
    Ddprun job(
        {resource("spawn_grandchild"), "group", "wait"}, {}, "", {}, in_child);
    job.await_out("ready");
    job.signal(SIGKILL);
    CHECK(!job.finish().left_something);
  }
  CHECK(helper.lives());
}

TEST_CASE("what a finished worker left runs on, and is asked at the end") {
  const std::string where = GENERATE("group", "session");
  Ddprun job({"--nproc-per-node=2",
              "--grace-period=2",
              "sh",
              "-c",
              "if [ $RANK = 0 ]; then read line; exit 0; fi; exec " +
                  in_shell(resource("leave_saver")) + " " + where});
  job.await_out("alone");
  job.close_input();
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.err,
             Contains("ddprun: the workers have ended and left running: "
                      "leave_saver (pid ") &&
                 Contains("); SIGTERM follows after 1 s, SIGKILL after 2 s "
                          "(--grace-period)\n"));
  CHECK(result.lines_of("[1] ") == Lines{"alone", "saved"});
  CHECK(!result.left_something);
}

TEST_CASE("an upload that a finished worker left has the grace period") {
  const bool in_session = GENERATE(false, true);
  const bool is_in_time = GENERATE(true, false);
  // Only an upload that is in time may end with the job's input, which the test
  // closes at the end.
  const std::string work = is_in_time ? "cat" : "sleep 600";
  const TemporaryFolder folder;
  const std::string begun = folder / "begun";
  // The worker ends when the upload ignores SIGTERM.
  const std::string upload = std::string(in_session ? "setsid " : "") +
                             "sh -c \"trap '' TERM; : > " + begun +
                             "; echo uploading; " + work +
                             "; echo uploaded\" <&3 & until [ -e " + begun +
                             " ]; do sleep 0.02; done; exit 0";
  Ddprun job({is_in_time ? "--grace-period=30" : "--grace-period=0.2",
              "sh",
              "-c",
              "exec 3<&0; " + upload});
  job.await_err("the workers have ended and left running: sh (pid ");
  if (is_in_time) {
    job.close_input();
  } else {
    job.await_err(
        "ending with SIGKILL what the workers left running: after 200 ms it is "
        "still there");
  }
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.err,
             Contains(is_in_time ? ", cat (pid " : ", sleep (pid "));
  CHECK(result.lines_of("[0] ") ==
        (is_in_time ? Lines{"uploading", "uploaded"} : Lines{"uploading"}));
  CHECK(!result.left_something);
}

TEST_CASE("kill -9 of ddprun ends workers behind a shell and grandchildren") {
  const bool has_cgroup = GENERATE(true, false);
  Ddprun job({"--nproc-per-node=2",
              "sh",
              "-c",
              "sleep 1000 & sh -c 'sleep 1000 & echo ready; wait'; true"},
             {},
             "",
             {},
             [has_cgroup] {
               if (!has_cgroup) {
                 hide_cgroups();
               }
             });
  job.await_out("ready", 2);
  job.signal(SIGKILL);
  const auto result = job.finish();
  CHECK(result.status.signal == SIGKILL);
  CHECK(!result.left_something);
}

TEST_CASE("kill -9 of ddprun leaves no daemon in the job's cgroup") {
  if (launcher::JobCgroup().folder("x").empty()) {
    WARN("skipped: no cgroup can be made here");
    return;
  }
  const std::string what = GENERATE("daemon", "hidden");
  Ddprun job({resource("spawn_grandchild"), what, "wait"});
  job.await_out("ready");
  job.signal(SIGKILL);
  CHECK(!job.finish().left_something);
}

TEST_CASE("kill -9 of ddprun and its watcher ends the workers") {
  Ddprun job({resource("on_signal"), "ignore"},
             {},
             "",
             {},
             hide_cgroups);  // a leftover cgroup would remain
  job.await_out("ready");
  const pid_t watcher = watcher_of(job);
  job.signal(SIGSTOP);
  job.await_state(job.pid(), 'T');
  ::kill(watcher, SIGKILL);
  job.signal(SIGKILL);
  CHECK(!job.finish().left_something);
}

TEST_CASE("a kill of ddprun's group does not reach the watcher") {
  Ddprun job({resource("spawn_grandchild"), "group", "wait"}, {}, "", {}, [] {
    ::setpgid(0, 0);
  });
  job.await_out("ready");
  CHECK(::getpgid(watcher_of(job)) != job.pid());
  ::kill(-job.pid(), SIGKILL);
  CHECK(!job.finish().left_something);
}

TEST_CASE("a job without its watcher goes on") {
  Ddprun job(
      {"--max-restarts=1",
       "sh",
       "-c",
       "echo ready; read line; exit $((1 - TORCHELASTIC_RESTART_COUNT))"});
  job.await_out("ready");
  ::kill(watcher_of(job), SIGKILL);
  job.close_input();
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.err, Contains("restart 1 of 1"));
  CHECK(!result.left_something);
}

TEST_CASE("a job that had to be killed is started again") {
  const auto result = run_ddprun(
      {"--max-restarts=2",
       "--grace-period=0.1",
       "sh",
       "-c",
       "end=6; [ $TORCHELASTIC_RESTART_COUNT != 2 ] || end=0; exec " +
           in_shell(resource("spawn_grandchild")) + " group $end"});
  CHECK(result.code() == 0);
  CHECK_THAT(result.err, Contains("restart 2 of 2"));
  CHECK(!result.left_something);
}

TEST_CASE("kill -9 after a restart leaves nothing, either") {
  Ddprun job({"--max-restarts=1",
              "--grace-period=0.1",
              "sh",
              "-c",
              "end=6; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || end=wait; exec " +
                  in_shell(resource("spawn_grandchild")) + " group $end"},
             {},
             "",
             {},
             hide_cgroups);
  job.await_out("ready", 2);
  job.signal(SIGKILL);
  CHECK(!job.finish().left_something);
}

TEST_CASE("a worker that forks and dies is restarted, 50 times of 50") {
  const auto result =
      run_ddprun({"--max-restarts=50",
                  "sh",
                  "-c",
                  "[ $TORCHELASTIC_RESTART_COUNT != 50 ] || exit 0; "
                  "true & exec timeout 0.02 sleep 9"});
  CHECK(result.code() == 0);
  CHECK_THAT(result.err, Contains("rank 0 failed first: exit code 124"));
  CHECK_THAT(result.err, Contains("restart 50 of 50"));
  CHECK(!result.left_something);
}

TEST_CASE("256 workers with their logs at a limit of 1,024 open files") {
  rlimit limits{};
  ::getrlimit(RLIMIT_NOFILE, &limits);
  if (limits.rlim_max < 2048) {
    WARN("skipped: no more files may be opened on this machine");
    return;
  }
  const TemporaryFolder folder;
  const auto result = run_ddprun({"--nproc-per-node=256",
                                  "--tee=3",
                                  "--log-dir=" + folder.path(),
                                  "sh",
                                  "-c",
                                  "ulimit -n; echo x >&2"},
                                 {},
                                 "",
                                 Bound(60s),
                                 [] { limit(RLIMIT_NOFILE, 1024); });
  CHECK(result.code() == 0);
  for (int rank = 0; rank < 256; ++rank) {
    CHECK(result.lines_of("[" + std::to_string(rank) + "] ") == Lines{"1024"});
  }
}

TEST_CASE("a sandbox without pidfds: SIGCHLD does") {
  const auto in_child = [] {
    deny_system_calls({SYS_pidfd_open}, EPERM);
    deny_system_calls({SYS_clone3}, ENOSYS);
  };
  SECTION("success, after a restart") {
    const auto result = run_ddprun(
        {"--nproc-per-node=3", "--max-restarts=1", resource("fail_until"), "1"},
        {},
        "",
        {},
        in_child);
    CHECK(result.code() == 0);
    CHECK(!result.left_something);
  }
  SECTION("failure, with what is left behind") {
    const auto result = run_ddprun({"--nproc-per-node=3",
                                    "--grace-period=0.1",
                                    resource("spawn_grandchild"),
                                    "daemon",
                                    "5"},
                                   {},
                                   "",
                                   {},
                                   in_child);
    CHECK(result.code() == 5);
    CHECK_THAT(result.err, Contains("failed first: exit code 5"));
    CHECK(!result.left_something);
  }
  SECTION("a signal") {
    Ddprun job({"--nproc-per-node=2", resource("on_signal"), "exit"},
               {},
               "",
               {},
               in_child);
    job.await_out("ready", 2);
    job.signal(SIGTERM);
    CHECK(job.finish().code() == 128 + SIGTERM);
  }
}

TEST_CASE("no process can be made: one line") {
  const auto result =
      run_ddprun({"true"}, {{"ASAN_OPTIONS", "detect_leaks=0"}}, "", {}, [] {
        deny_system_calls({SYS_clone, SYS_clone3}, EAGAIN);
      });
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("ddprun: the system refuses what a job needs (cannot "
                      "start a process: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

#ifndef DDP_ADDRESS_SANITIZER
// The sanitizer reads /proc.
TEST_CASE("nothing is left without /proc, either") {
  const auto result = run_ddprun(
      {"--grace-period=0.1", resource("spawn_grandchild"), "daemon", "6"},
      {},
      "",
      {},
      [] {
        hide_cgroups();
        hide_mount("/proc");
      });
  CHECK(result.code() == 6);
  CHECK(!result.left_something);
}
#endif

TEST_CASE("a worker that has become another user's is named") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can make a program that becomes root's");
    return;
  }
  const TemporaryFolder folder;
  const std::string program = folder.path() + "/become_root";
  Ddprun job({"--grace-period=0.1", program}, {}, "", {}, [&] {
    hide_cgroups();
    hide_mount(folder.path().c_str());  // a nosuid mount would forbid setuid
    std::filesystem::copy_file(resource("become_root"), program);
    ::chmod(program.c_str(), 04755);
    become_nobody();
  });
  job.await_out("root's ");
  const pid_t worker = job.number_after("root's ");
  job.signal(SIGTERM);
  job.await_err("still there; it is another user's now");
  ::kill(worker, SIGKILL);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK(!result.left_something);
}
