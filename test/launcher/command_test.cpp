#include "launcher/machine/command.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/fd.h"
#include "test/launcher/child_setup.h"
#include "test/support/catch.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::steady_clock;

CommandSpec shell(const Environment& environment, const std::string& script) {
  return {.argv = {"/bin/sh", "-c", script},
          .environment = environment,
          .limit = minutes(1)};
}

TEST_CASE("a command's end and its output", "[command]") {
  const Environment environment{{"NAME", "value"}};
  const auto spec = shell(environment, "echo $NAME; echo error >&2; exit 3");
  const CommandEnd end = run_command(spec);
  CHECK(end.status.value().code == 3);
  CHECK(end.output == "value\nerror\n");
}

TEST_CASE("of a long output the beginning is kept", "[command]") {
  const Environment environment;
  const auto spec =
      shell(environment, "echo begin; head -c 70000000 /dev/zero");
  const std::string output = run_command(spec).output;
  CHECK(output.size() == 64 << 20);
  CHECK(output.rfind("begin\n", 0) == 0);
}

TEST_CASE("a command that runs past its limit ends with all it has started",
          "[command]") {
  const Environment environment;
  auto spec = shell(environment, "echo $$; sleep 600 & sleep 600");
  spec.limit = milliseconds(500);
  const CommandEnd end = run_command(spec);
  CHECK_FALSE(end.status);
  const std::string group = end.output.substr(0, end.output.find('\n'));
  // Zombies of the group go when init has reaped them.
  const auto probe = shell(environment,
                           "i=0; while kill -0 -" + group +
                               " 2>/dev/null && [ $i -lt 600 ]; do sleep 0.1; "
                               "i=$((i + 1)); done; [ $i -lt 600 ]");
  CHECK(run_command(probe).status.value().is_success());
}

/// As one that the kernel holds, or that has become root's.
TEST_CASE("a command that cannot be killed is not waited for", "[command]") {
  const pid_t child = ::fork();
  if (child == 0) {
    test::deny_system_calls({SYS_kill}, EPERM);
    const Environment environment;
    auto spec = shell(environment, "exec sleep 600");
    spec.limit = milliseconds(1);
    ::_exit(run_command(spec).status ? 1 : 0);
  }
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 60'000) == 1);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a command gets SIGTERM before SIGKILL", "[command]") {
  const Environment environment;
  auto spec =
      shell(environment, "trap 'echo asked; exit 0' TERM; sleep 600 & wait");
  spec.limit = milliseconds(500);
  spec.grace = minutes(1);
  const CommandEnd end = run_command(spec);
  CHECK_FALSE(end.status);
  CHECK(end.output == "asked\n");
}

TEST_CASE("a command without pidfds", "[command]") {
  const pid_t child = ::fork();
  if (child == 0) {
    test::deny_system_calls({SYS_pidfd_open}, EPERM);
    const Environment environment;
    const CommandEnd end = run_command(shell(environment, "echo done; exit 3"));
    ::_exit(end.status && end.status->code == 3 && end.output == "done\n" ? 0
                                                                          : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a name is looked up in PATH of the command's environment",
          "[command]") {
  const Environment environment{{"PATH", "/nowhere"}};
  CHECK(run_command(
            {.argv = {"true"}, .environment = environment, .limit = minutes(1)})
            .status.value()
            .code == 127);
}

TEST_CASE("a process that a command leaves behind is not waited for",
          "[command]") {
  const Environment environment;
  const auto begin = steady_clock::now();
  const CommandEnd end = run_command(
      shell(environment, "setsid sh -c 'exec sleep 60' & echo done"));
  CHECK(end.status.value().is_success());
  CHECK(end.output == "done\n");
  CHECK(steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("a command that does not exist ends with 127", "[command]") {
  const CommandEnd end = run_command({.argv = {"/nowhere/program"},
                                      .environment = Environment{},
                                      .limit = minutes(1)});
  CHECK(end.status.value().code == 127);
}

}  // namespace
}  // namespace launcher
