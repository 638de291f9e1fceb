#include "launcher/machine/run_and_capture.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "test/launcher/child_setup.h"
#include "test/support/catch.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::steady_clock;

CaptureSpec shell(const Environment& environment, const std::string& script) {
  return {.argv = {"/bin/sh", "-c", script},
          .environment = environment,
          .limit = minutes(1)};
}

TEST_CASE("a command's end and its output", "[capture]") {
  const Environment environment{{"NAME", "value"}};
  auto spec = shell(environment, "echo $NAME; echo error >&2; exit 3");
  SECTION("stdout alone") {
    const CommandEnd end = run_and_capture(spec);
    CHECK(end.status.value().code == 3);
    CHECK(end.output == "value\n");
  }
  SECTION("with stderr") {
    spec.with_stderr = true;
    CHECK(run_and_capture(spec).output == "value\nerror\n");
  }
}

TEST_CASE("of a long output the beginning is kept", "[capture]") {
  const Environment environment;
  auto spec = shell(environment,
                    "i=0; while [ $i -lt 20000 ]; do echo line $i; "
                    "i=$((i + 1)); done");
  spec.most_bytes = 1000;
  const std::string output = run_and_capture(spec).output;
  CHECK(output.size() == 1000);
  CHECK(output.rfind("line 0\nline 1\n", 0) == 0);
}

TEST_CASE("a command that runs past its limit ends with all it has started",
          "[capture]") {
  const Environment environment;
  auto spec = shell(environment, "echo $$; sleep 600 & sleep 600");
  spec.limit = milliseconds(500);
  const CommandEnd end = run_and_capture(spec);
  CHECK_FALSE(end.status);
  const std::string group = end.output.substr(0, end.output.find('\n'));
  // Zombies of the group go when init has reaped them.
  const auto probe = shell(environment,
                           "i=0; while kill -0 -" + group +
                               " 2>/dev/null && [ $i -lt 600 ]; do sleep 0.1; "
                               "i=$((i + 1)); done; [ $i -lt 600 ]");
  CHECK(run_and_capture(probe).status.value().is_success());
}

/// As one that the kernel holds, or that has become root's.
TEST_CASE("a command that cannot be killed is not waited for", "[capture]") {
  const pid_t child = ::fork();
  if (child == 0) {
    test::deny_system_calls({SYS_kill}, EPERM);
    const Environment environment;
    auto spec = shell(environment, "exec sleep 600");
    spec.limit = milliseconds(1);
    ::_exit(run_and_capture(spec).status ? 1 : 0);
  }
  const auto end = capture_output(child, {}, std::chrono::seconds(60));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(end);
  CHECK(end->is_success());
}

TEST_CASE("a process that a command leaves behind is not waited for",
          "[capture]") {
  const Environment environment;
  const auto begin = steady_clock::now();
  const CommandEnd end = run_and_capture(
      shell(environment, "setsid sh -c 'exec sleep 60' & echo done"));
  CHECK(end.status.value().is_success());
  CHECK(end.output == "done\n");
  CHECK(steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("a command that does not exist ends with 127", "[capture]") {
  const CommandEnd end = run_and_capture({.argv = {"/nowhere/program"},
                                          .environment = Environment{},
                                          .limit = minutes(1)});
  CHECK(end.status.value().code == 127);
}

}  // namespace
}  // namespace launcher
