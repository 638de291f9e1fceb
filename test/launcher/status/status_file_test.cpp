#include "launcher/job/status/status_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launcher/job/status/job_folder.h"
#include "launcher/job/status/status_json.h"
#include "launcher/job/status/status_reader.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace launcher;
using ddp::test::files_in;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;

namespace {

std::string status_of(const std::string& job) {
  JobStatus status;
  status.job = job;
  status.phase = "running";
  status.supervisor = 77;
  return status_json(status);
}

}  // namespace

TEST_CASE("a status file is whole, its owner's alone, renewed and removed") {
  const TemporaryFolder folder;
  const std::string path = folder / "status.json";
  EventLoop loop;
  launcher::test::bound(loop);
  int writes = 0;
  {
    const StatusFile file(loop, folder.path(), [&writes] {
      return std::to_string(++writes) + "\n";
    });
    CHECK(read_file(path) == "1\n");
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    const Fd before(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    while (writes < 2) {
      loop.run_once();
    }
    CHECK(read_file(path) == "2\n");
    char first = 0;  // an open file keeps its content
    CHECK(::pread(before.get(), &first, 1, 0) == 1);
    CHECK(first == '1');
    CHECK(folder.size() == 1);
  }
  CHECK(folder.size() == 0);
}

TEST_CASE("what a full disk does not take leaves the last status, or none") {
  const TemporaryFolder folder;
  const std::string path = folder / "status.json";
  EventLoop loop;
  launcher::test::bound(loop);
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  const auto let_write = [&](bool may) {
    const rlimit limit{may ? old_limit.rlim_cur : 0, old_limit.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  int writes = 0;
  let_write(false);
  const StatusFile file(
      loop, folder.path(), [&] { return std::to_string(++writes) + "\n"; });
  let_write(true);
  CHECK(folder.size() == 1);
  CHECK(read_file(path).empty());
  while (writes < 2) {
    loop.run_once();
  }
  CHECK(read_file(path) == "2\n");
  let_write(false);
  while (writes < 3) {
    loop.run_once();
  }
  let_write(true);
  CHECK(folder.size() == 1);
  CHECK(read_file(path) == "2\n");
  ::signal(SIGXFSZ, old_action);
}

TEST_CASE("without a folder there is no status file, and no error") {
  EventLoop loop;
  const auto describe = [] { return std::string("x"); };
  const StatusFile none(loop, "", describe);
  const StatusFile missing(loop, "/nowhere", describe);
}

/// One without a lock that is still renewed belongs to another host.
TEST_CASE("status files: of jobs that live, hang or were killed") {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  std::vector<Fd> locks;
  for (const std::string job :
       {"lives", "hangs", "broken", "killed", "elsewhere"}) {
    const std::string place = folder / ("ddprun_" + job);
    REQUIRE(::mkdir(place.c_str(), 0700) == 0);
    files.push_back(place + "/status.json");
    write_file(files.back(), job == "broken" ? "{}" : status_of(job));
    if (job != "killed" && job != "elsewhere") {
      locks.push_back(lock_folder(place));
      REQUIRE(locks.back());
    }
  }
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  for (const size_t file : {1, 3}) {
    REQUIRE(::utimensat(AT_FDCWD, files[file].c_str(), old, 0) == 0);
  }
  files.push_back(folder / "gone/status.json");
  const StatusAnswers answers = read_statuses(files);
  REQUIRE(answers.jobs.size() == 1);
  CHECK(answers.jobs[0].job == "lives");
  REQUIRE(answers.silent.size() == 2);
  CHECK(answers.silent[0].file == files[1]);
  CHECK(answers.silent[0].pid == 77);
  CHECK(answers.silent[1].file == files[2]);
  CHECK(answers.stale == std::vector<std::string>{files[3]});

  auto found = find_status_files({{"TMPDIR", folder.path()}});
  std::erase_if(found, [&](const std::string& path) {
    return path.rfind(folder.path(), 0) != 0;
  });
  std::sort(found.begin(), found.end());
  std::sort(files.begin(), files.end() - 1);
  files.pop_back();
  CHECK(found == files);
}

TEST_CASE("a folder is locked as long as a copy of its lock is open") {
  const TemporaryFolder folder;
  CHECK(!is_locked(folder.path()));
  Fd lock = lock_folder(folder.path());
  REQUIRE(lock);
  CHECK(is_locked(folder.path()));
  CHECK(!lock_folder(folder.path()));
  Fd copy(::fcntl(lock.get(), F_DUPFD_CLOEXEC, 0));
  lock.reset();
  CHECK(is_locked(folder.path()));
  copy.reset();
  CHECK(!is_locked(folder.path()));
}
