#include "ddp/base/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "test/support/catch.h"
#include "test/support/child.h"
#include "test/support/deny_system_calls.h"
#include "test/support/temporary_folder.h"
#include "test/support/watched_disk.h"

namespace atomic_file_test {

using Catch::Contains;
using ddp::detail::AtomicFile;
using ddp::detail::Disk;
using ddp::test::read_file;
using ddp::test::status_of_child;
using ddp::test::TemporaryFolder;
using ddp::test::WatchedDisk;
using ddp::test::write_file;

// Disk steps: write, write, sync, rename, sync of the folder.
constexpr int kSteps = 5;
constexpr int kRename = 3;

void replace(const std::string& path, Disk& disk = AtomicFile::real_disk()) {
  AtomicFile file(path, disk);
  file.write("new ", 4);
  file.write("content", 7);
  file.commit();
}

TEST_CASE("A file is replaced", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  replace(path);
  CHECK(read_file(path) == "new content");
  write_file(path, "something longer than before");
  replace(path);
  CHECK(read_file(path) == "new content");
  CHECK(folder.size() == 1);
}

TEST_CASE("A failure at any step leaves the old file", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  const int bad = GENERATE(range(0, kSteps));
  CAPTURE(bad);
  write_file(path, "old");
  WatchedDisk disk([bad](int step) { return step == bad ? ENOSPC : 0; });
  CHECK_THROWS_WITH(replace(path, disk), Contains("No space left on device"));
  CHECK(read_file(path) == (bad > kRename ? "new content" : "old"));
  CHECK(folder.size() == 1);
}

TEST_CASE("A kill at any step leaves the old file or the new one",
          "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  const int last = GENERATE(range(0, kSteps));
  CAPTURE(last);
  write_file(path, "old");
  const int status = status_of_child([&] {
    WatchedDisk disk(
        [last](int step) { return step == last ? ::raise(SIGKILL) : 0; });
    replace(path, disk);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(read_file(path) == (last > kRename ? "new content" : "old"));
  // Files left by the kill do not disturb the next save, which removes them.
  replace(path);
  CHECK(read_file(path) == "new content");
  CHECK(folder.size() == 1);
}

TEST_CASE("A limit of the file size leaves the old file", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  write_file(path, "old");
  const int status = status_of_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{6, 6};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      replace(path);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      ::_exit(text.find("File too large") != std::string::npos ? 7 : 8);
    }
  });
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(read_file(path) == "old");
  CHECK(folder.size() == 1);
}

TEST_CASE("What the disk does not take leaves the old file", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  write_file(path, "old");
  const int status = status_of_child([&] {
    ddp::test::deny_system_calls({SYS_fsync}, EIO);
    try {
      replace(path);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      ::_exit(text.find("Input/output error") != std::string::npos ? 7 : 8);
    }
  });
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(read_file(path) == "old");
  CHECK(folder.size() == 1);
}

TEST_CASE("Two writers of one file do not mix", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  AtomicFile first(path);
  first.write("first", 5);
  CHECK_THROWS_WITH(AtomicFile(path),
                    Contains("another process is writing it"));
  first.commit();
  CHECK(read_file(path) == "first");
  replace(path);
  CHECK(read_file(path) == "new content");
}

TEST_CASE("A file that is not committed leaves nothing", "[atomic_file]") {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("x", 1);
  }
  CHECK(folder.size() == 0);
}

TEST_CASE("A symbolic link is followed", "[atomic_file]") {
  const TemporaryFolder folder;
  write_file(folder / "target", "old");
  REQUIRE(::symlink("target", (folder / "link").c_str()) == 0);
  replace(folder / "link");
  char target[7] = {};
  CHECK(::readlink((folder / "link").c_str(), target, 6) == 6);
  CHECK(std::string(target) == "target");
  CHECK(read_file(folder / "target") == "new content");
}

TEST_CASE("A file keeps its permissions", "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  const auto mode_of = [](const std::string& file) {
    struct stat status {};
    REQUIRE(::stat(file.c_str(), &status) == 0);
    return status.st_mode & 0777U;
  };
  const auto mask = ::umask(022);
  replace(path);
  CHECK(mode_of(path) == 0644);
  for (const mode_t mode : {0600U, 0444U, 0666U, 0755U}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    AtomicFile file(path);
    file.write("secret", 6);
    CHECK(mode_of(path + ".tmp") == 0600);
    file.commit();
    CHECK(mode_of(path) == mode);
  }
  ::umask(mask);
}

TEST_CASE("What lies at the temporary name is never written to",
          "[atomic_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  const auto temporary = path + ".tmp";
  write_file(folder / "target", "old");
  const auto refuses = [&] {
    CHECK_THROWS_WITH(
        AtomicFile(path),
        Contains(temporary + " is there already and is not a regular file"));
    CHECK(read_file(folder / "target") == "old");
    CHECK(std::remove(temporary.c_str()) == 0);
  };
  REQUIRE(::symlink("target", temporary.c_str()) == 0);
  refuses();
  REQUIRE(::symlink("nowhere", temporary.c_str()) == 0);
  refuses();
  REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
  refuses();
  REQUIRE(::mkdir(temporary.c_str(), 0700) == 0);
  refuses();
  // A hard link to a file.
  REQUIRE(::link((folder / "target").c_str(), temporary.c_str()) == 0);
  replace(path);
  CHECK(read_file(path) == "new content");
  CHECK(read_file(folder / "target") == "old");
}

TEST_CASE("What is no file is not replaced", "[atomic_file]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(AtomicFile("/dev/null"), Contains("not a regular file"));
  CHECK_THROWS_WITH(AtomicFile(folder / "."), Contains("not a regular file"));
  CHECK_THROWS_WITH(AtomicFile(folder / "no/such/folder"),
                    Contains("No such file or directory"));
}

}  // namespace atomic_file_test
