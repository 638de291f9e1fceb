#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "ddp/base/net/tcp.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;
using Lines = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) {
    entries.push_back(entry.path());
  }
  return entries;
}

mode_t rights_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

mode_t own_umask() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

fs::path only_entry_of(const fs::path& folder) {
  const auto entries = entries_of(folder);
  REQUIRE(entries.size() == 1);
  return entries.front();
}

}  // namespace

TEST_CASE("every rank has its environment, and the caller's") {
  const auto result = run_ddprun({"--nnodes=1",
                                  "--nproc-per-node=3",
                                  "--rdzv-id=job7",
                                  "--max-restarts=2",
                                  "--monitor-interval=1",
                                  "--start-method=spawn",
                                  resource("print_env"),
                                  "RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "GROUP_RANK",
                                  "GROUP_WORLD_SIZE",
                                  "ROLE_NAME",
                                  "ROLE_RANK",
                                  "ROLE_WORLD_SIZE",
                                  "MASTER_ADDR",
                                  "OMP_NUM_THREADS",
                                  "TORCHELASTIC_RESTART_COUNT",
                                  "TORCHELASTIC_MAX_RESTARTS",
                                  "TORCHELASTIC_RUN_ID",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                  "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                  "CALLERS_OWN",
                                  "MASTER_PORT",
                                  "TORCHELASTIC_ERROR_FILE"},
                                 {{"CALLERS_OWN", "kept"}, {"RANK", "99"}});
  CHECK(result.code() == 0);
  CHECK(result.err.empty());
  CHECK(!result.left_something);
  std::set<std::string> ports;
  for (const std::string rank : {"0", "1", "2"}) {
    auto lines = result.lines_of("[" + rank + "] ");
    REQUIRE(lines.size() == 20);
    CHECK_THAT(lines.back(),
               Contains("TORCHELASTIC_ERROR_FILE=/") &&
                   Catch::EndsWith("/attempt_0/" + rank + "/error.json"));
    lines.pop_back();
    ports.insert(lines.back());
    lines.pop_back();
    CHECK(lines == Lines{"RANK=" + rank,
                         "WORLD_SIZE=3",
                         "LOCAL_RANK=" + rank,
                         "LOCAL_WORLD_SIZE=3",
                         "GROUP_RANK=0",
                         "GROUP_WORLD_SIZE=1",
                         "ROLE_NAME=default",
                         "ROLE_RANK=" + rank,
                         "ROLE_WORLD_SIZE=3",
                         "MASTER_ADDR=127.0.0.1",
                         "OMP_NUM_THREADS=1",
                         "TORCHELASTIC_RESTART_COUNT=0",
                         "TORCHELASTIC_MAX_RESTARTS=2",
                         "TORCHELASTIC_RUN_ID=job7",
                         "TORCHELASTIC_USE_AGENT_STORE=False",
                         "TORCHELASTIC_SIGNALS_TO_HANDLE="
                         "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                         "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                         "CALLERS_OWN=kept"});
  }
  CHECK(ports.size() == 1);
}

TEST_CASE("arguments reach the program as they are; rank 0 has stdin") {
  const auto result = run_ddprun({"--nproc_per_node",
                                  "2",
                                  resource("print_args"),
                                  "--nproc-per-node=7",
                                  "",
                                  "a b",
                                  "--",
                                  "${local_rank}"},
                                 {},
                                 "hello\n");
  CHECK(result.code() == 0);
  const std::string own = "<--nproc-per-node=7><><a b><-->";
  CHECK(result.lines_of("[0] ") == Lines{own + "<0>", "stdin: hello"});
  CHECK(result.lines_of("[1] ") == Lines{own + "<1>"});
}

TEST_CASE("virtual local ranks: each worker has one device, and it is 0") {
  const auto result = run_ddprun({"--nproc-per-node=2",
                                  "--virtual-local-rank",
                                  resource("print_env"),
                                  "RANK",
                                  "LOCAL_RANK",
                                  "CUDA_VISIBLE_DEVICES"},
                                 {{"CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"}});
  CHECK(result.code() == 0);
  CHECK(result.lines_of("[0] ") ==
        Lines{"RANK=0", "LOCAL_RANK=0", "CUDA_VISIBLE_DEVICES=GPU-a"});
  CHECK(result.lines_of("[1] ") ==
        Lines{"RANK=1", "LOCAL_RANK=0", "CUDA_VISIBLE_DEVICES=GPU-b"});
}

TEST_CASE("two hosts that do not meet: the second continues the ranks") {
  const auto result = run_ddprun({"--nnodes=2",
                                  "--node-rank=1",
                                  "--rdzv-conf=meeting_port=0",
                                  "--master-addr=127.0.0.1",
                                  "--nproc-per-node=2",
                                  resource("print_env"),
                                  "RANK",
                                  "WORLD_SIZE",
                                  "MASTER_PORT"});
  CHECK(result.code() == 0);
  CHECK(result.lines_of("[2] ") ==
        Lines{"RANK=2", "WORLD_SIZE=4", "MASTER_PORT=29500"});
  CHECK(result.lines_of("[3] ").front() == "RANK=3");
}

TEST_CASE("two hosts that do not meet: the first failure ends the job") {
  const auto result = run_ddprun({"--nnodes=2",
                                  "--node-rank=1",
                                  "--rdzv-conf=meeting_port=0",
                                  "--master-addr=127.0.0.1",
                                  "--max-restarts=3",
                                  resource("fail_until"),
                                  "1"});
  CHECK(result.code() == 3);
  CHECK(result.lines_of("[1] attempt ").size() == 1);
  CHECK_THAT(result.err, Contains("ddprun: --max-restarts has no effect"));
}

TEST_CASE("rank 0 can listen on the port that ddprun keeps for it") {
  const auto result = run_ddprun({resource("listen_on_master_port")});
  CHECK(result.code() == 0);
  CHECK(result.out == "[0] reached\n");
  // Also at the port that the user has chosen.
  const auto free = ddp::detail::reserve_port(0);
  const std::string port = std::to_string(free.port);
  const auto chosen =
      run_ddprun({"--nnodes=1",
                  "--node-rank=0",
                  "--master-addr=localhost",
                  "--master-port=" + port,
                  "sh",
                  "-c",
                  "echo $MASTER_ADDR $MASTER_PORT; exec " +
                      in_shell(resource("listen_on_master_port"))});
  CHECK(chosen.code() == 0);
  CHECK(chosen.out == "[0] localhost " + port + "\n[0] reached\n");
}

TEST_CASE(
    "of two jobs with one port the first goes on, the second is refused") {
  const auto free = ddp::detail::reserve_port(0);
  const std::string port = std::to_string(free.port);
  for (int round = 0; round < 20; ++round) {
    Ddprun first({"--master-port=" + port, "sh", "-c", "echo here; cat"});
    first.await_out("here");
    const auto second = run_ddprun(
        {"--master-port=" + port, resource("listen_on_master_port")});
    CHECK(second.code() == 1);
    CHECK(second.out.empty());
    CHECK(second.err ==
          "ddprun: port " + port +
              " is in use on this host; give another --master-port (with one "
              "host, leave it out: a free one is taken)\n");
    CHECK(first.finish().code() == 0);
  }
}

TEST_CASE("with one host the endpoint of c10d is no port of rank 0's store") {
  const auto free = ddp::detail::reserve_port(0);
  const std::string port = std::to_string(free.port);
  for (const std::string host : {"127.0.0.1", "203.0.113.9"}) {
    const auto result =
        run_ddprun({"--rdzv-backend=c10d",
                    "--rdzv-endpoint=" + host + ":" + port,
                    "sh",
                    "-c",
                    "echo $MASTER_ADDR; test $MASTER_PORT != " + port});
    CHECK(result.code() == 0);
    CHECK(result.out == "[0] 127.0.0.1\n");
  }
}

TEST_CASE("the Python beside ddprun comes before that of PATH") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "bin");
  const std::string own = folder / "bin/ddprun";
  const bool is_link = GENERATE(true, false);
  if (is_link) {
    std::filesystem::create_symlink(ddprun_path(), own);
  } else {
    std::filesystem::copy_file(ddprun_path(), own);
  }
  const auto write_python = [](const std::string& path, const char* words) {
    std::ofstream(path) << "#!/bin/sh\necho " << words << " \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms(0755));
  };
  write_python(folder / "bin/python3", "beside");
  write_python(folder / "python3", "of PATH");
  std::ofstream(folder / "x.py") << "";
  const std::string script = folder / "x.py";
  const auto run = [&](const std::string& path,
                       std::map<std::string, std::string> variables = {}) {
    variables["PATH"] = path;
    return run_ddprun({own, script}, variables).out;
  };
  const std::string usual = folder.path() + ":/usr/bin:/bin";
  CHECK(run(usual) == "[0] [0] beside -u " + script + "\n");
  CHECK(run(usual, {{"PYTHON_EXEC", "/bin/echo"}}) ==
        "[0] [0] -u " + script + "\n");
  // The order of PATH decides, as for a system's folder and an active
  // environment, but not against the own environment.
  const std::string both = usual + ":" + folder.path() + "/bin";
  CHECK(run(both) == "[0] [0] of PATH -u " + script + "\n");
  std::ofstream(folder / "pyvenv.cfg") << "";
  CHECK(run(both) == "[0] [0] beside -u " + script + "\n");
  CHECK(std::filesystem::remove(folder / "bin/python3"));
  CHECK(run(usual) == "[0] [0] of PATH -u " + script + "\n");
  const auto none = run_ddprun({script}, {{"PATH", "/nowhere"}});
  CHECK(none.code() == 127);
  CHECK_THAT(none.err, Contains("python3") && Contains("PYTHON_EXEC"));
}

TEST_CASE("programs by name, by path, and as Python") {
  CHECK(run_ddprun({"true"}).code() == 0);
  CHECK(run_ddprun({"/bin/sh", "-c", "exit 4"}).code() == 4);
  const TemporaryFolder folder;
  const std::string script = folder.path() + "/train.py";
  std::ofstream(script) << "import os, sys\n"
                           "print(os.environ['RANK'], sys.argv[1:])\n";
  const auto result = run_ddprun({"--nproc-per-node=2", script, "--lr", "1"});
  CHECK(result.code() == 0);
  CHECK(result.lines_of("[1] ") == Lines{"1 ['--lr', '1']"});
  CHECK(run_ddprun({"-m", "this_module_does_not_exist"}).code() == 1);
  CHECK(run_ddprun({script}, {{"PYTHON_EXEC", "/bin/echo"}}).out ==
        "[0] -u " + script + "\n");
  std::ofstream(folder / "-u.py") << "";
  const auto go_there = [&] {
    if (::chdir(folder.path().c_str()) != 0) {
      ::_exit(99);
    }
  };
  const auto dashed = run_ddprun(
      {"--", "-u.py"}, {{"PYTHON_EXEC", "/bin/echo"}}, "", {}, go_there);
  CHECK(dashed.out == "[0] -u ./-u.py\n");
  const std::string no_shebang = folder.path() + "/script";
  std::ofstream(no_shebang) << "echo by sh\n";
  fs::permissions(no_shebang, fs::perms::owner_all);
  CHECK(run_ddprun({no_shebang}).out == "[0] by sh\n");
  // The file's name does not matter.
  const std::string odd = folder.path() + "/odd";
  std::ofstream(odd) << "import sys\nprint('by python')\nsys.exit(0)\n";
  CHECK(run_ddprun({"--run-path", odd}).out == "[0] by python\n");
  const std::string shell = folder.path() + "/shell.py";
  std::ofstream(shell) << "#!/bin/sh\ntouch $1/rank$RANK\n";
  CHECK(run_ddprun({"--no-python", shell}).code() == 126);
  fs::permissions(shell, fs::perms::owner_all);
  const std::string ranks = folder.path() + "/ranks";
  fs::create_directory(ranks);
  CHECK(
      run_ddprun({"--no-python", "--nproc-per-node=4", shell, ranks}).code() ==
      0);
  for (const char* rank : {"/rank0", "/rank1", "/rank2", "/rank3"}) {
    CHECK(fs::exists(ranks + rank));
  }
  CHECK(entries_of(ranks).size() == 4);
}

TEST_CASE("a dry run prints commands that a shell can run") {
  const auto dry = run_ddprun({"--dry-run",
                               "--nproc-per-node=2",
                               "--master-port=0",
                               "sh",
                               "-c",
                               "echo $RANK of $WORLD_SIZE"});
  CHECK(dry.code() == 0);
  CHECK_THAT(dry.out, Contains("# rank 1, local rank 1\nenv \\\n"));
  CHECK_THAT(dry.out, Contains("  sh -c 'echo $RANK of $WORLD_SIZE'\n"));
  CHECK(run_ddprun({"sh", "-c", dry.out}).out == "[0] 0 of 2\n[0] 1 of 2\n");
}

TEST_CASE("log files have torchrun's layout and the modes of umask") {
  const TemporaryFolder folder;
  const auto result = run_ddprun({"--log-dir=" + folder.path() + "/new/logs",
                                  "--rdzv-id=job7",
                                  "--nproc-per-node=2",
                                  "--redirects=0:1",
                                  "--tee=1:3",
                                  "sh",
                                  "-c",
                                  "echo out $RANK; echo err $RANK >&2"});
  CHECK(result.code() == 0);
  CHECK(result.out == "[1] out 1\n");
  CHECK_THAT(result.err, Contains("[0] err 0\n") && Contains("[1] err 1\n"));
  const fs::path run = only_entry_of(folder.path() + "/new/logs");
  CHECK_THAT(run.filename().string(), Contains("job7_"));
  const fs::path attempt = only_entry_of(run);
  CHECK(attempt.filename() == "attempt_0");
  CHECK(text_of(attempt / "0" / "stdout.log") == "out 0\n");
  CHECK(!fs::exists(attempt / "0" / "stderr.log"));
  CHECK(text_of(attempt / "1" / "stdout.log") == "out 1\n");
  CHECK(text_of(attempt / "1" / "stderr.log") == "err 1\n");
  CHECK(rights_of(run) == (0777 & ~own_umask()));
  CHECK(rights_of(attempt / "1" / "stdout.log") == (0666 & ~own_umask()));
}

TEST_CASE("a link in the place of an attempt's folder is refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() + "/elsewhere");
  const auto result =
      run_ddprun({"--log-dir=" + folder.path() + "/logs",
                  "--max-restarts=1",
                  "sh",
                  "-c",
                  "ln -s " + folder.path() +
                      "/elsewhere ${TORCHELASTIC_ERROR_FILE%/*/*}/../attempt_1;"
                      " exit 3"});
  CHECK(result.code() == 1);
  CHECK_THAT(result.err, Contains("/attempt_1 (Not a directory); give"));
  CHECK(entries_of(folder.path() + "/elsewhere").empty());
}

TEST_CASE("no temporary folder can be written to: the job runs") {
  // All possible temporary folders are read-only, like the root of a pod. The
  // program may lie below one of them, so a descriptor keeps it open.
  const std::string as_in_a_pod =
      "exec 9<\"$0\"; for place in /tmp /var/tmp /dev/shm; do "
      "mount -t tmpfs -o ro none $place || exit 99; done; "
      "exec /proc/self/fd/9";
  const bool says_so = GENERATE(true, false);
  const auto result =
      run_ddprun({"unshare",
                  "-rm",
                  "sh",
                  "-c",
                  as_in_a_pod + (says_so ? " " : " --log-dir=/dev/null ") +
                      "sh -c 'echo \"[$TORCHELASTIC_ERROR_FILE]\"; exit 7'",
                  ddprun_path()},
                 // A sanitizer's file may lie below one of them, too.
                 {{"TMPDIR", "/tmp"}, {"TSAN_OPTIONS", ""}});
  if (result.code() == 99 ||
      result.err.find("unshare: ") != std::string::npos) {
    WARN("skipped: mounting needs rights: " << result.err);
    return;
  }
  CHECK(result.code() == 7);
  CHECK(result.out == "[0] [0] []\n");
  CHECK_THAT(result.err, Contains("rank 0 failed first: exit code 7"));
  CHECK((result.err.find("no temporary folder") != std::string::npos) ==
        says_so);
}

TEST_CASE("a umask that takes the owner's rights is the workers' alone") {
  const TemporaryFolder folder;
  const auto result = run_ddprun(
      {"--log-dir=" + (folder / "logs"), "--tee=1", "sh", "-c", "umask"},
      {},
      "",
      {},
      [] { ::umask(0777); });
  CHECK(result.code() == 0);
  CHECK(result.out == "[0] 0777\n");
  const std::string run = only_entry_of(folder / "logs");
  CHECK(rights_of(folder / "logs") == 0700);
  CHECK(rights_of(run + "/attempt_0/0") == 0700);
  CHECK(rights_of(run + "/attempt_0/0/stdout.log") == 0600);
}

TEST_CASE("an error file that somebody chose is no place for files") {
  const TemporaryFolder folder;
  const auto result = run_ddprun(
      {"sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"},
      {{"TORCHELASTIC_ERROR_FILE", "/dev/null"}, {"TMPDIR", folder.path()}});
  CHECK(result.code() == 0);
  CHECK_THAT(result.out, Contains("[0] " + folder.path() + "/ddprun_"));
}

TEST_CASE("no files are left when none were asked for") {
  const TemporaryFolder folder;
  CHECK(run_ddprun({"true"}, {{"TMPDIR", folder.path()}}).code() == 0);
  CHECK(
      run_ddprun({resource("exit_with"), "3", "0"}, {{"TMPDIR", folder.path()}})
          .code() == 3);
  CHECK(entries_of(folder.path()).empty());
  // Requested without a folder: the logs are kept, and ddprun prints their
  // place.
  const auto kept =
      run_ddprun({"-r", "1", "echo", "x"}, {{"TMPDIR", folder.path()}});
  CHECK_THAT(kept.err, Contains("logs are in " + folder.path()));
  CHECK(entries_of(folder.path()).size() == 1);
}

TEST_CASE("the filter hides ranks on the console only") {
  const auto result = run_ddprun({"--nproc-per-node=3",
                                  "--local-ranks-filter=1",
                                  "sh",
                                  "-c",
                                  "echo $RANK; echo $RANK >&2"});
  CHECK(result.out == "[1] 1\n");
  CHECK(result.err == "[1] 1\n");
}

TEST_CASE("restarts have a new port and end when one attempt is well") {
  const auto result = run_ddprun(
      {"--nproc-per-node=3", "--max-restarts=3", resource("fail_until"), "2"});
  CHECK(result.code() == 0);
  CHECK(!result.left_something);
  std::set<std::string> ports;
  for (const int attempt : {0, 1, 2}) {
    const std::string wanted = "attempt " + std::to_string(attempt) + " port ";
    const auto lines = result.lines_of("[1] " + wanted);
    REQUIRE(lines.size() == 1);
    ports.insert(lines.front());
  }
  CHECK(ports.size() == 3);
  CHECK(result.lines_of("[2] attempt 2").size() == 1);
  CHECK_THAT(result.err, Contains("restart 2 of 3"));
}

TEST_CASE("restarts are used up") {
  const auto result = run_ddprun(
      {"--nproc-per-node=2", "--max-restarts=1", resource("fail_until"), "5"});
  CHECK(result.code() == 3);
  CHECK_THAT(result.err, Contains("attempt 2 of 2"));
}

TEST_CASE("many jobs at once do not meet") {
  std::vector<std::unique_ptr<Ddprun>> jobs;
  for (int job = 0; job < 8; ++job) {
    jobs.push_back(std::make_unique<Ddprun>(
        Ddprun::Arguments{"--standalone", resource("listen_on_master_port")}));
  }
  for (auto& job : jobs) {
    const auto result = job->finish();
    CHECK(result.code() == 0);
    CHECK(result.out == "[0] reached\n");
  }
}
