#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/base/fd.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

namespace {

/// Checks that wrong input gives one line and an exit code, and starts no
/// process.
void check_refused(const Ddprun::Arguments& arguments,
                   int code,
                   const std::string& text,
                   const std::map<std::string, std::string>& variables = {},
                   Bound bound = {}) {
  const auto result = run_ddprun(arguments, variables, "", bound);
  CAPTURE(arguments);
  CHECK(result.code() == code);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains(text));
  CHECK(result.err.compare(0, 8, "ddprun: ") == 0);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(!result.left_something);
}

int listen_somewhere(launcher::Fd& listener) {
  listener.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::listen(listener.get(), 1) == 0);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  REQUIRE(::getsockname(listener.get(),
                        reinterpret_cast<sockaddr*>(&address),
                        &size) == 0);
  return ntohs(address.sin_port);
}

}  // namespace

TEST_CASE("wrong options") {
  check_refused({"--nproc-per-node=0", "echo"}, 2, "--nproc-per-node");
  check_refused({"--nproc-per-node=abc", "echo"}, 2, "but got \"abc\"");
  check_refused({"--bogus", "echo"}, 2, "unknown option --bogus");
  check_refused({}, 2, "expected a program");
  check_refused({"echo"}, 2, "PET_MAX_RESTARTS", {{"PET_MAX_RESTARTS", "x"}});
  check_refused({"--nnodes=1", "--nproc-pernode=2", "echo"},
                2,
                "(did you mean --nproc-per-node?)");
  check_refused({"--log=x", "echo"}, 2, "--log-dir, --logs-specs");
}

TEST_CASE("what nobody knows is told, and the job runs") {
  const auto result = run_ddprun({"--rdzv-conf=tiemout=3", "echo", "x"},
                                 {{"PET_NPROCS_PER_NODE", "2"}});
  CHECK(result.code() == 0);
  CHECK(result.out == "[0] x\n");
  CHECK_THAT(result.err,
             Contains("(did you mean PET_NPROC_PER_NODE?)\n") &&
                 Contains("(did you mean timeout?)\n"));
}

TEST_CASE("programs that cannot be started") {
  check_refused({"no-such-program"}, 127, "program no-such-program is in no");
  check_refused({"/no/such/program"}, 127, "does not exist");
  check_refused({"/no\nsuch"}, 127, "program /no\\nsuch does not exist");
  check_refused({"no_such.py"}, 127, "no_such.py does not exist");
  check_refused({"/etc/passwd"}, 126, "expected an executable program");
  check_refused({"/etc"}, 126, "expected a program, but /etc is a folder");
  check_refused({"--run-path", "/etc/passwd"},
                127,
                "PYTHON_EXEC: program /no/python does not exist",
                {{"PYTHON_EXEC", "/no/python"}});
}

TEST_CASE("a program whose interpreter is missing: all or nothing") {
  const std::string path =
      "/tmp/ddprun_bad_interpreter_" + std::to_string(::getpid());
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  check_refused({"--nproc-per-node=4", path}, 127, "interpreter");
  std::filesystem::remove(path);
}

TEST_CASE("a system at its limits: none is started") {
  const auto result =
      run_ddprun({"sh",
                  "-c",
                  "ulimit -n 24; exec " + in_shell(ddprun_path()) +
                      " --nproc-per-node=64 echo x"});
  CHECK(result.code() == 1);
  CHECK_THAT(result.err, Contains("the workers cannot be started"));
  CHECK_THAT(result.err, Contains("ulimit"));
  CHECK(!result.left_something);
}

TEST_CASE("hardly a file may be open: each line says so, and nothing stays") {
  const auto result =
      run_ddprun({"sh",
                  "-c",
                  "unset TORCHELASTIC_ERROR_FILE; cd $(mktemp -d); export "
                  "TMPDIR=$PWD; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; "
                  "for most in 4 6 8; do (ulimit -n $most; " +
                      in_shell(ddprun_path()) + " echo x); done; rmdir $PWD"});
  CHECK(result.code() == 0);
  std::istringstream lines(result.err);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    CHECK_THAT(line, Contains("Too many open files); check ulimit -a"));
  }
  CHECK(count == 3);
}

TEST_CASE("devices that do not exist") {
  check_refused({"--gpus=97", "echo"}, 2, "--gpus: expected GPUs");
  check_refused({"--gpus=0", "echo"},
                2,
                "--gpus: expected GPUs",
                {{"CUDA_VISIBLE_DEVICES", ""}});
  check_refused({"--nproc-per-node=gpu", "echo"},
                2,
                "--nproc-per-node: gpu",
                {{"CUDA_VISIBLE_DEVICES", ""}});
}

TEST_CASE("a port that is in use") {
  launcher::Fd listener;
  const std::string port = std::to_string(listen_somewhere(listener));
  check_refused(
      {"--master-port=" + port, "echo"}, 1, "port " + port + " is in use");
  check_refused({"--nnodes=2",
                 "--node-rank=0",
                 "--rdzv-endpoint=127.0.0.1:" + port,
                 "echo"},
                1,
                "port " + port + " is in use",
                {{"DDPRUN_TOKEN", "secret"}});
}

TEST_CASE("a master that does not resolve") {
  check_refused({"--nnodes=2",
                 "--node-rank=1",
                 "--master-addr=no-such-host.invalid",
                 "echo"},
                1,
                "no-such-host.invalid cannot be resolved");
}

TEST_CASE("a log folder that cannot be made") {
  check_refused({"--log-dir=/proc/self/none", "echo"}, 1, "--log-dir");
  check_refused({"--log-dir=/etc/passwd", "echo"}, 1, "--log-dir");
}

TEST_CASE("a working folder that is gone") {
  const std::string gone = "cd $(mktemp -d) && rmdir $PWD && exec ";
  const auto with_logs = run_ddprun(
      {"sh", "-c", gone + in_shell(ddprun_path()) + " --log-dir=logs echo x"});
  CHECK(with_logs.code() == 1);
  CHECK_THAT(with_logs.err,
             Contains("cannot write to logs (No such file or directory)"));
  const auto without = run_ddprun(
      {"sh",
       "-c",
       gone + "env TMPDIR=here " + in_shell(ddprun_path()) + " echo x"});
  CHECK(without.out == "[0] [0] x\n");
}

TEST_CASE("help and version are for stdout") {
  const auto version = run_ddprun({"--version"});
  CHECK(version.code() == 0);
  CHECK_THAT(version.out, Contains("ddprun "));
  const auto help = run_ddprun({"--help"});
  CHECK(help.code() == 0);
  CHECK_THAT(help.out, Contains("--nproc-per-node"));
  CHECK(help.err.empty());
}
