#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "launcher/base/fd.h"
#include "launcher/net/port.h"
#include "test/launcher/child_setup.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/sanitizers.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using Catch::Equals;
using namespace launcher::test;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using launcher::Fd;
using namespace std::chrono_literals;

TEST_CASE("the exit code is the failing worker's, the report names it") {
  const int code = GENERATE(1, 2, 32, 127, 138, 255);
  const auto result = run_ddprun({"--nproc-per-node=3",
                                  resource("exit_with"),
                                  std::to_string(code),
                                  "1",
                                  "the reason"});
  CHECK(result.code() == code);
  CHECK(result.status.signal == 0);
  CHECK(!result.left_something);
  CHECK_THAT(result.err, Contains("[1] the reason\n"));
  CHECK_THAT(
      result.err,
      Contains("rank 1 failed first: exit code " + std::to_string(code)));
  CHECK_THAT(result.err, Contains("stderr:\n    | the reason\n"));
  CHECK_THAT(result.err, Contains("SIGTERM, stopped by ddprun"));
}

TEST_CASE("a worker killed by a signal: 128 + its number") {
  const int number =
      GENERATE(SIGKILL, SIGTERM, SIGSEGV, SIGABRT, SIGPIPE, SIGRTMIN + 5);
  const auto result = run_ddprun({"--nproc-per-node=2",
                                  resource("die_by_signal"),
                                  std::to_string(number)});
  CHECK(result.code() == 128 + number);
  CHECK_THAT(result.err, Contains("rank 0 failed first: killed by "));
  CHECK(!result.left_something);
}

TEST_CASE("those who ignore the end of a failed job are killed") {
  // Rank 0 fails when its stdin ends; the other ranks are ready by then.
  Ddprun job({"--nproc-per-node=3",
              "--grace-period=0.1",
              "sh",
              "-c",
              "if [ $RANK = 0 ]; then read line; exit 5; fi; exec " +
                  in_shell(resource("on_signal")) + " ignore"});
  job.await_out("ready", 2);
  job.close_input();
  const auto result = job.finish();
  CHECK(result.code() == 5);
  CHECK_THAT(result.err, Contains("rank 0 failed first: exit code 5"));
  CHECK_THAT(result.err, Contains("ending 2 workers with SIGKILL"));
  CHECK_THAT(result.err, Contains("SIGKILL, stopped by ddprun"));
  CHECK(!result.left_something);
}

TEST_CASE("SIGTERM ignored: SIGKILL, and the report says so") {
  Ddprun job({"--nproc-per-node=2",
              "--grace-period=0.1",
              resource("on_signal"),
              "ignore"});
  job.await_out("ready", 2);
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err, Contains("ending 2 workers with SIGKILL"));
  CHECK_THAT(result.err, Contains("SIGKILL, stopped by ddprun"));
  CHECK(!result.left_something);
}

TEST_CASE("stop signals are passed on as they are") {
  const int number = GENERATE(SIGTERM, SIGINT, SIGHUP, SIGQUIT);
  Ddprun job({"--nproc-per-node=3", resource("on_signal"), "exit"});
  job.await_out("ready", 3);
  job.signal(number);
  const auto result = job.finish();
  CHECK(result.code() == 128 + number);
  for (const char* rank : {"[0] ", "[1] ", "[2] "}) {
    CHECK(result.lines_of(rank).back() == "signal " + std::to_string(number));
  }
  CHECK(!result.left_something);
}

TEST_CASE("other signals are passed on and the job goes on") {
  Ddprun job({"--nproc-per-node=2", resource("on_signal"), "show"});
  job.await_out("ready", 2);
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGRTMIN + 3}) {
    job.signal(number);
    job.await_out("signal " + std::to_string(number) + "\n", 2);
  }
  job.signal(SIGTERM);
  job.await_out("signal " + std::to_string(SIGTERM), 2);
  // A second signal from the keyboard ends the job at once.
  job.signal(SIGINT);
  job.await_err("SIGINT came");
  job.await_out("signal " + std::to_string(SIGINT), 2);
  job.signal(SIGINT);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK(!result.left_something);
}

TEST_CASE("a signal that is not to be handled reaches the workers alone") {
  const int number = GENERATE(SIGINT, SIGHUP, SIGQUIT);
  Ddprun job({"--signals-to-handle=SIGTERM",
              "sh",
              "-c",
              "trap 'echo got; exit 0' " + std::to_string(number) +
                  "; echo ready; while :; do sleep 0.05; done"});
  job.await_out("ready");
  job.signal(number);
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.out, Contains("got"));
  CHECK_THAT(result.err, Contains("came: passing it on to the workers"));
}

TEST_CASE("a program for another machine is not taken for a script") {
  const TemporaryFolder folder;
  std::string program = read_file("/bin/true");
  Elf64_Half machine = EM_S390;
  std::memcpy(program.data() + offsetof(Elf64_Ehdr, e_machine),
              &machine,
              sizeof(machine));
  write_file(folder / "train", program);
  REQUIRE(::chmod((folder / "train").c_str(), 0700) == 0);
  const auto result = run_ddprun({folder / "train"});
  CHECK(result.code() == 126);
  CHECK_THAT(result.err, Contains("check that it was built for this machine"));
}

TEST_CASE("ctrl-c twice ends a stubborn job at once") {
  Ddprun job({"--grace-period=100000", resource("on_signal"), "ignore"});
  job.await_out("ready");
  job.signal(SIGINT);
  job.await_err("SIGINT came");
  job.signal(SIGINT);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGINT);
  CHECK(!result.left_something);
}

TEST_CASE("the first failure is the kernel's first, however late it is seen") {
  const TemporaryFolder folder;
  for (const char* rank : {"0", "1", "2"}) {
    REQUIRE(::mkfifo((folder.path() + "/go" + rank).c_str(), 0600) == 0);
  }
  Ddprun job({"--nproc-per-node=3",
              "sh",
              "-c",
              "echo pid $$$$; read x < " + folder.path() +
                  "/go$RANK; exit $((RANK + 40))"});
  job.await_out("\n", 3);
  job.signal(SIGSTOP);
  job.await_state(job.pid(), 'T');
  for (const int rank : {2, 0, 1}) {
    const pid_t pid = job.number_after("[" + std::to_string(rank) + "] pid ");
    const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    // O_RDWR opens the pipe without waiting for a reader.
    const Fd go(
        ::open((folder.path() + "/go" + std::to_string(rank)).c_str(), O_RDWR));
    REQUIRE(::write(go.get(), "\n", 1) == 1);
    pollfd end{process.get(), POLLIN, 0};
    REQUIRE(::poll(&end, 1, 20'000) == 1);
  }
  job.signal(SIGCONT);
  const auto result = job.finish();
  CHECK(result.code() == 42);
  CHECK_THAT(result.err, Contains("rank 2 failed first: exit code 42"));
  CHECK_THAT(result.err, Contains("exit code 40, after the first failure"));
  CHECK_THAT(result.err, Contains("exit code 41, after the first failure"));
}

TEST_CASE("a job in a job: all of both goes with the outer one") {
  const bool is_asked = GENERATE(true, false);
  Ddprun job({"--nproc-per-node=2",
              ddprun_path(),
              "--nproc-per-node=2",
              "--grace-period=0.1",
              resource("spawn_grandchild"),
              is_asked ? "daemon" : "group",
              "wait"});
  job.await_out("[1] [1] ready");
  job.await_out("ready", 4);
  job.signal(is_asked ? SIGTERM : SIGKILL);
  CHECK(job.finish().left_something == false);
  CHECK((!is_asked || !job.left_files()));
}

TEST_CASE("a signal that the caller ignores is ignored (nohup)") {
  ::signal(SIGHUP, SIG_IGN);
  Ddprun job({resource("on_signal"), "exit"});
  ::signal(SIGHUP, SIG_DFL);
  job.await_out("ready");
  job.signal(SIGHUP);
  job.signal(SIGTERM);
  CHECK(job.finish().code() == 128 + SIGTERM);
}

TEST_CASE("processes that workers leave behind end with the job") {
  const std::string what = GENERATE("group", "daemon");
  const std::string code = GENERATE("0", "6");
  const auto result = run_ddprun({"--nproc-per-node=3",
                                  "--grace-period=0.1",
                                  resource("spawn_grandchild"),
                                  what,
                                  code});
  CHECK(std::to_string(result.code()) == code);
  CHECK(!result.left_something);
  if (code == "0") {
    CHECK(result.lines_of("[1] ") == std::vector<std::string>{"ready"});
  }
}

TEST_CASE("a dead child of a worker does not hold up the end") {
  // The child ends first. Its parent becomes another program, which does not
  // wait for it, so ddprun gets both when the parent ends.
  const auto result = run_ddprun({"sh", "-c", "true & exec sleep 0.2"});
  CHECK(result.code() == 0);
  CHECK(!result.left_something);
}

TEST_CASE("a run that takes too long is named") {
  const int line = __LINE__ + 1;
  Ddprun job({"sleep", "100"}, {}, "", Bound(0s));
  CHECK_THROWS_WITH(job.finish(),
                    Contains("ddprun_failure_test.cpp:" + std::to_string(line) +
                             ": ddprun took longer than 0 s"));
}

TEST_CASE("the grace period is for the whole process group") {
  Ddprun job({"--nproc-per-node=2", resource("save_after_parent")});
  job.await_out("ready", 2);
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK(result.lines_of("[0] ").back() == "saved");
  CHECK(result.lines_of("[1] ").back() == "saved");
  CHECK(!result.left_something);
}

TEST_CASE("an error file of torch's record is in the report") {
  const auto result = run_ddprun({resource("write_error_file")});
  CHECK(result.code() == 1);
  CHECK_THAT(result.err, Contains("error file:\n    | ValueError: bad loss\n"));
}

TEST_CASE("an error goes up through launchers, with how its worker ended") {
  const TemporaryFolder folder;
  const std::string file = folder / "own.json";
  const auto run = [&](std::vector<std::string> program) {
    program.insert(program.begin(), {"--nproc-per-node=1", ddprun_path()});
    return run_ddprun(program, {{"TORCHELASTIC_ERROR_FILE", file}});
  };
  const auto result = run({resource("write_error_file")});
  CHECK(result.code() == 1);
  // Both the inner ddprun and the outer ddprun, which passes on the inner one's
  // lines, report it.
  CHECK_THAT(
      result.err,
      Contains("\n[0]   its error file:\n[0]     | ValueError: bad loss\n") &&
          Contains("\n  its error file:\n    | ValueError: bad loss\n"));
  CHECK(ddp::test::read_file(file) ==
        R"({"message":{"message":"ValueError: bad loss","errorCode":1}})");
  CHECK(run({"sh", "-c", "echo { >$TORCHELASTIC_ERROR_FILE; exit 7"}).code() ==
        7);
  CHECK_THAT(ddp::test::read_file(file),
             Contains(R"({"message":"rank 0 failed first: exit code 7",)") &&
                 Contains("its error file has no message") &&
                 Contains(R"("errorCode":7})"));
  CHECK(run({"true"}).code() == 0);
  CHECK_THAT(ddp::test::read_file(file), Contains("exit code 7"));
  CHECK(folder.size() == 1);
  const auto unwritable =
      run_ddprun({"sh", "-c", "exit 7"},
                 {{"TORCHELASTIC_ERROR_FILE", folder / "no/file"}});
  CHECK(unwritable.code() == 7);
  CHECK_THAT(unwritable.err,
             Contains("ddprun: TORCHELASTIC_ERROR_FILE=" + folder / "no/file" +
                      " cannot be written (No such file or directory)"));
}

TEST_CASE("a report for programs: all attempts, and where the logs are") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  const auto result = run_ddprun({"--nproc-per-node=2",
                                  "--max-restarts=3",
                                  "--log-dir=" + folder / "logs",
                                  "--report-json=" + file,
                                  resource("fail_until"),
                                  "2"});
  CHECK(result.code() == 0);
  const auto report = nlohmann::json::parse(ddp::test::read_file(file));
  CHECK(report["state"] == "ended");
  CHECK(report["exit_code"] == 0);
  REQUIRE(report["attempts"].size() == 3);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto& entry = report["attempts"][attempt];
    CHECK(entry["number"] == attempt + 1);
    CHECK(entry["cause"].is_null() == (attempt == 2));
    CHECK(entry["workers"].size() == 2);
    const std::string logs = entry["logs"];
    CHECK_THAT(logs, Contains("/attempt_" + std::to_string(attempt)));
    CHECK(::access((logs + "/1").c_str(), F_OK) == 0);
  }
  const auto unwritable = run_ddprun(
      {"--report-json=" + folder.path(), "sh", "-c", "echo started"});
  CHECK(unwritable.code() == 1);
  CHECK(unwritable.out.empty());
  CHECK_THAT(unwritable.err,
             Contains("ddprun: --report-json: " + folder.path() +
                      " cannot be written (File exists); give"));
}

TEST_CASE("an error file that is a FIFO holds up nothing") {
  const auto result = run_ddprun(
      {"sh", "-c", "mkfifo $TORCHELASTIC_ERROR_FILE; echo why >&2; exit 7"});
  CHECK(result.code() == 7);
  CHECK_THAT(result.err, Contains("stderr:\n    | why\n"));
}

namespace {

[[maybe_unused]] std::map<std::string, std::string> slow_system(
    const std::string& what) {
  // A path in LD_PRELOAD ends at a space; one in LD_LIBRARY_PATH does not.
  return {{"LD_PRELOAD", "slow_system.so"},
          {"LD_LIBRARY_PATH", DDP_TEST_RESOURCES_DIR},
          {"SLOW", what}};
}

}  // namespace

TEST_CASE("a signal ends a job whose name service does not answer") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const int number = GENERATE(SIGTERM, SIGINT);
  Ddprun job({"--nnodes=2", "--master-addr=host0", "--node-rank=1", "true"},
             slow_system("names"));
  job.await_err("looking up\n");
  job.signal(number);
  const auto result = job.finish();
  CHECK(result.status.code == 128 + number);
  CHECK_THAT(result.err, Contains("ddprun: stopped by SIG"));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE("a signal ends a job whose program's file does not answer") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  Ddprun job({"--nproc-per-node=2", "true"}, slow_system("programs"));
  job.await_err("executing\n", 2);
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err, Contains("rank 1 (pid "));
  CHECK(!result.left_something);
#endif
}

TEST_CASE("a job whose logs lie where nothing answers hears of a death") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  Ddprun job({"--nproc-per-node=2",
              "--log-dir=" + folder.path(),
              "--tee=3",
              "sh",
              "-c",
              "echo line; [ $RANK = 0 ] || exit 9; exec sleep 1000"},
             slow_system("logs"));
  job.await_err("writing\n");
  job.await_err("rank 1 failed first: exit code 9");
  job.signal(SIGTERM);  // else the job waits for its logs
  const auto result = job.finish();
  CHECK(result.status.code == 9);
  CHECK_THAT(result.err,
             Contains("ddprun: output was lost, so this is no success: ") &&
                 Contains(" 5 bytes of " + folder.path()));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE(
    "a job whose stdout is a file that does not answer hears of a death") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  Ddprun job({"--nproc-per-node=2",
              "sh",
              "-c",
              "echo line; [ $RANK = 0 ] || exit 9; exec sleep 1000"},
             slow_system("logs"),
             "",
             {},
             [&path] {
               const int file =
                   ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
               ::dup2(file, STDOUT_FILENO);
             });
  job.await_err("writing\n");
  job.await_err("rank 1 failed first: exit code 9");
  job.signal(SIGTERM);  // else the job waits for its stdout
  const auto result = job.finish();
  CHECK(result.status.code == 9);
  CHECK_THAT(
      result.err,
      Contains("so this is no success: ") && Contains(" bytes of stdout\n"));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE("a signal ends a job whose log folders cannot be created for now") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  const std::string slow = GENERATE("/job_", "/attempt_0", "/attempt_1");
  CAPTURE(slow);
  const int number = GENERATE(SIGTERM, SIGUSR1);
  Ddprun job({"--rdzv-id=job",
              "--log-dir=" + folder.path(),
              "--tee=3",
              "--max-restarts=1",
              "--on-preempt=USR1:1000",
              "false"},
             slow_system(slow));
  job.await_err("creating\n");
  job.signal(number);
  const auto result = job.finish();
  CHECK(result.code() == 128 + number);
  CHECK_THAT(result.err, Contains("stopped by SIG") && !Contains("ddprun: \n"));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE("a host whose log folders cannot be created for now is not lost") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  launcher::PortReservation port{0};
  const auto arguments = [&](int rank, Ddprun::Arguments more) {
    Ddprun::Arguments all{
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.port()),
        "--rdzv-conf=keep_alive_interval=0.5,keep_alive_max_attempt=2,is_"
        "host=" +
            std::to_string(rank == 0)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // Longer than the time after which a silent host is lost.
  Ddprun first(arguments(
      0, {"sh", "-c", "echo began; sleep 3; echo slept; exec sleep 1000"}));
  Ddprun second(arguments(1, {"--log-dir=" + folder.path(), "--tee=3", "true"}),
                slow_system("/attempt_0"));
  second.await_err("creating\n");
  first.await_out("slept\n");
  second.signal(SIGTERM);
  CHECK(second.finish().code() == 128 + SIGTERM);
  const auto result = first.finish();
  CHECK(result.code() == 1);
  CHECK_THAT(result.err, Contains("has left") && !Contains("vanished"));
#endif
}

TEST_CASE("a --log-dir that cannot be written to is one line") {
  const TemporaryFolder folder;
  ddp::test::write_file(folder / "file", "");
  const auto result = run_ddprun(
      {"--log-dir=" + (folder / "file/logs"), "--tee=3", "echo", "started"});
  CHECK(result.code() == 1);
  CHECK(result.out.empty());
  CHECK_THAT(result.err,
             Equals("ddprun: cannot write to " + (folder / "file") +
                    " (Not a directory); give another --log-dir, or set "
                    "TMPDIR\n"));
}

TEST_CASE("output that a stop signal left unwritten is no success") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  Ddprun job({"--log-dir=" + folder.path(), "--tee=3", "echo", "line"},
             slow_system("logs"));
  job.await_err("writing\n");
  job.await_out("line\n");
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(result.status.code != 0);
  CHECK(!result.left_something);
#endif
}

TEST_CASE("a --report-json that lies where nothing answers stops no job") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  Ddprun job({"--nproc-per-node=2",
              "--max-restarts=1",
              "--report-json=" + file,
              "sh",
              "-c",
              "[ $RANK = 0 ] && exec sleep 1000; echo line; exit 9"},
             slow_system("reports"));
  job.await_err("writing\n");
  job.await_out("line\n", 2);
  job.await_err("rank 1 failed first: exit code 9", 2);
  job.signal(SIGTERM);  // else the job waits for its report
  const auto result = job.finish();
  CHECK(result.status.code == 9);
  CHECK_THAT(result.err, Contains(" bytes of " + file + "\n"));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE("a job whose error files lie where nothing answers ends") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  Ddprun job({"sh", "-c", "echo why >&2; exit 9"}, slow_system("errors"));
  job.await_err("opening\n");
  const auto result = job.finish();
  CHECK(result.status.code == 9);
  CHECK_THAT(result.err,
             Contains("failed first: exit code 9") && Contains("    | why\n"));
  CHECK(!result.left_something);
  CHECK(!job.left_files());
#endif
}

TEST_CASE("logs that cannot be finished are lost output") {
#ifdef DDP_ADDRESS_SANITIZER
  WARN("skipped: AddressSanitizer wants to be loaded first");
#else
  const TemporaryFolder folder;
  const auto result =
      run_ddprun({"--log-dir=" + folder.path(), "--tee=3", "echo", "line"},
                 slow_system("close"));
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("so this is no success: the end of " + folder.path()));
#endif
}
