#include "launcher/workers/process_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "test/launcher/bound_loop.h"
#include "test/launcher/child_setup.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace launcher;
using ddp::test::TemporaryFolder;

namespace {

std::function<void()> before_fork;

/// Installs a handler that calls before_fork, if set, before each fork of this
/// process.
void call_before_forks() {
  static const int added = ::pthread_atfork(
      [] {
        if (before_fork) {
          before_fork();
        }
      },
      nullptr,
      nullptr);
  REQUIRE(added == 0);
}

void await(int fd, const std::string& what) {
  constexpr int kBoundMs = 20'000;
  pollfd ready{fd, POLLIN, 0};
  if (::poll(&ready, 1, kBoundMs) != 1) {
    throw std::runtime_error("waited 20 s for " + what);
  }
}

/// A worker that writes its process id into a named pipe and then fails.
struct FailingWorker {
  explicit FailingWorker(std::string pipe) : path(std::move(pipe)) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }

  WorkerSpec spec(int rank, const std::string& folder) const {
    WorkerSpec worker;
    worker.rank = worker.local_rank = rank;
    worker.directory = folder;
    worker.argv = {"sh",
                   "-c",
                   "echo $$ > " + path + "; exit " + std::to_string(40 + rank)};
    return worker;
  }

  /// Reads the id, for which the worker waits, and blocks until the worker
  /// ends.
  void await_end() const {
    const Fd pipe(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    await(pipe.get(), "the start of a worker");
    char text[32] = {};
    REQUIRE(::read(pipe.get(), text, sizeof(text) - 1) > 0);
    const Fd process(
        static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(text), 0)));
    await(process.get(), "the end of a worker");
  }

  std::string path;
};

/// Reads the lines that a worker writes into a named pipe.
class NamedPipeReader {
 public:
  explicit NamedPipeReader(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    pipe_ = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  }

  std::string line() {
    std::string text;
    for (char c = 0; c != '\n';) {
      await(pipe_.get(), "a line of the worker after \"" + text + "\"");
      REQUIRE(::read(pipe_.get(), &c, 1) == 1);
      text += c;
    }
    return text.substr(0, text.size() - 1);
  }

 private:
  Fd pipe_;
};

}  // namespace

TEST_CASE("the first to fail while others still start is seen first") {
  const TemporaryFolder folder;
  const std::vector<FailingWorker> dying{FailingWorker(folder / "0"),
                                         FailingWorker(folder / "1")};
  LaunchPlan plan;
  plan.path = "/bin/sh";
  for (int rank = 0; rank < 2; ++rank) {
    plan.workers.push_back(dying[rank].spec(rank, folder / "logs"));
  }
  WorkerSpec last;
  last.rank = last.local_rank = 2;
  last.directory = folder / "logs";
  last.argv = {"sh", "-c", "exit 0"};
  plan.workers.push_back(last);

  EventLoop loop;
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Consoles consoles(loop, losses);
  const JobCgroup no_cgroup(std::nullopt);
  const Watcher watcher(no_cgroup);
  Strays strays;
  const CallerSettings settings;
  const Environment environment = current_environment();
  std::vector<WorkerExited> exits;
  ProcessRunner runner({.loop = loop,
                        .consoles = consoles,
                        .logs = logs,
                        .cgroup = no_cgroup,
                        .environment = environment,
                        .settings = settings,
                        .cpu_count = 2,
                        .watcher = watcher,
                        .strays = strays,
                        .post = [&](const WorkersEvent& event) {
                          if (const auto* exit =
                                  std::get_if<WorkerExited>(&event)) {
                            exits.push_back(*exit);
                          }
                        }});
  call_before_forks();
  int forks = 0;
  before_fork = [&] {
    if (++forks == 3) {
      dying[1].await_end();
      dying[0].await_end();
    }
  };
  runner.start(plan);
  logs.drain();  // starts the workers, whose folders are there
  before_fork = nullptr;
  REQUIRE(forks == 3);
  launcher::test::bound(loop);
  while (exits.size() < 3) {
    loop.run_once();
  }
  CHECK(exits[0].local_rank == 1);
  CHECK(exits[0].status.code == 41);
  CHECK(exits[1].local_rank == 0);
  CHECK(exits[1].status.code == 40);
  for (const int local_rank : {0, 1, 2}) {
    runner.release(local_rank);
  }
  CHECK(runner.finish().survivors.empty());
}

TEST_CASE("a worker that is asked again to end is not continued again") {
  const TemporaryFolder folder;
  NamedPipeReader told(folder / "told");
  LaunchPlan plan;
  plan.path = "/bin/sh";
  WorkerSpec worker;
  worker.directory = folder / "logs";
  // A shell handles a signal only after the command that it waits for.
  worker.argv = {"sh",
                 "-c",
                 "exec 3>" + (folder / "told") +
                     "; trap 'echo continued >&3' CONT"
                     "; trap 'echo asked >&3' TERM"
                     "; echo ready >&3"
                     "; while :; do sleep 60 & wait $!; done"};
  plan.workers.push_back(worker);

  EventLoop loop;
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Consoles consoles(loop, losses);
  const JobCgroup no_cgroup(std::nullopt);
  const Watcher watcher(no_cgroup);
  Strays strays;
  const CallerSettings settings;
  const Environment environment = current_environment();
  bool has_exited = false;
  ProcessRunner runner({.loop = loop,
                        .consoles = consoles,
                        .logs = logs,
                        .cgroup = no_cgroup,
                        .environment = environment,
                        .settings = settings,
                        .cpu_count = 2,
                        .watcher = watcher,
                        .strays = strays,
                        .post = [&](const WorkersEvent& event) {
                          has_exited |=
                              std::holds_alternative<WorkerExited>(event);
                        }});
  runner.start(plan);
  logs.drain();
  REQUIRE(told.line() == "ready");
  const auto ask = [&] {
    runner.signal_all(SIGTERM, WorkerRunner::Purpose::end);
  };
  ask();
  CHECK(std::set<std::string>{told.line(), told.line()} ==
        std::set<std::string>{"asked", "continued"});
  for (int again = 0; again < 2; ++again) {
    ask();
    CHECK(told.line() == "asked");
  }
  runner.kill_all();
  launcher::test::bound(loop);
  while (!has_exited) {
    loop.run_once();
  }
  runner.release(0);
  CHECK(runner.finish().exits.at(0).status.signal == SIGKILL);
}

TEST_CASE("what a worker that does not end has started ends without it") {
  const TemporaryFolder folder;
  NamedPipeReader told(folder / "told");
  Pipe life = make_pipe();
  REQUIRE(::fcntl(life.write.get(), F_SETFD, 0) == 0);
  LaunchPlan plan;
  plan.path = "/bin/sh";
  WorkerSpec worker;
  worker.directory = folder / "logs";
  worker.argv = {"sh",
                 "-c",
                 "setsid sh -c 'setsid sleep 1000 & echo ready > " +
                     (folder / "told") + "; wait' & wait"};
  plan.workers.push_back(worker);

  EventLoop loop;
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Consoles consoles(loop, losses);
  const JobCgroup no_cgroup(std::nullopt);
  const Watcher watcher(no_cgroup);
  Strays strays;
  const CallerSettings settings;
  const Environment environment = current_environment();
  ProcessRunner runner({.loop = loop,
                        .consoles = consoles,
                        .logs = logs,
                        .cgroup = no_cgroup,
                        .environment = environment,
                        .settings = settings,
                        .cpu_count = 2,
                        .watcher = watcher,
                        .strays = strays,
                        .post = [](const WorkersEvent&) {}});
  runner.start(plan);
  logs.drain();
  life.write.reset();
  REQUIRE(told.line() == "ready");
  CHECK(runner.finish().survivors.size() == 1);
  await(life.read.get(), "the end of what it has started");
}

/// Kill is refused, as if the kernel held the worker in exec.
TEST_CASE("a failed start does not wait for a worker that does not end") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    LaunchPlan plan;
    plan.path = "/bin/sleep";
    WorkerSpec worker;
    worker.directory = folder / "logs";
    worker.argv = {"sleep", "1000"};
    plan.workers.push_back(worker);
    worker.rank = worker.local_rank = 1;
    worker.cpus = {1023};
    plan.workers.push_back(worker);
    EventLoop loop;
    launcher::test::bound(loop);
    DroppedOutput losses;
    OutputThread logs(loop, losses);
    Consoles consoles(loop, losses);
    const JobCgroup no_cgroup(std::nullopt);
    const Watcher watcher(no_cgroup);
    Strays strays;
    const CallerSettings settings;
    const Environment environment = current_environment();
    bool has_failed = false;
    ProcessRunner runner({.loop = loop,
                          .consoles = consoles,
                          .logs = logs,
                          .cgroup = no_cgroup,
                          .environment = environment,
                          .settings = settings,
                          .cpu_count = 2,
                          .watcher = watcher,
                          .strays = strays,
                          .post = [&](const WorkersEvent& event) {
                            has_failed |=
                                std::holds_alternative<StartFailed>(event);
                          }});
    launcher::test::deny_system_calls({SYS_kill}, EPERM);
    runner.start(plan);
    logs.drain();
    while (!has_failed) {
      loop.run_once();
    }
    ::_exit(0);
  }
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 60'000) == 1);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a cgroup that a job of the same number has left is none of ours") {
  const auto parent = own_cgroup_folder();
  const bool has_cgroups = !JobCgroup().folder("x").empty();
  if (!has_cgroups) {
    WARN("skipped: no cgroup can be made here");
    return;
  }
  const std::string left = *parent + "/ddprun." + std::to_string(::getpid());
  REQUIRE(::mkdir(left.c_str(), 0700) == 0);
  {
    const JobCgroup cgroup;
    CHECK(cgroup.folder("x") == left + ".1/x");
    CHECK(cgroup.add("x"));
    CHECK(cgroup.add("y"));
    cgroup.remove("x");
    CHECK(::access((left + ".1/x").c_str(), F_OK) != 0);
    CHECK(::access((left + ".1/y").c_str(), F_OK) == 0);
  }
  CHECK(::access((left + ".1").c_str(), F_OK) != 0);
  CHECK(::rmdir(left.c_str()) == 0);
}
