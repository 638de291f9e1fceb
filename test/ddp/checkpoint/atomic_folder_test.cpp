#include "ddp/base/atomic_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "test/support/catch.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/watched_disk.h"

namespace atomic_folder_test {

using Catch::Contains;
using ddp::detail::AtomicFile;
using ddp::detail::AtomicFolder;
using ddp::detail::Disk;
using ddp::detail::names_in;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::WatchedDisk;
using ddp::test::write_file;

bool is_own(const std::string& name) {
  return name[0] != 'x';
}

/// Replaces a folder by one with two files of this text.
void replace(const std::string& path,
             const std::string& text,
             Disk& disk = AtomicFile::real_disk()) {
  AtomicFolder folder(path, is_own, disk);
  for (const auto* name : {"/a", "/b"}) {
    AtomicFile file(folder.temporary() + name, disk);
    file.write(text.data(), text.size());
    file.commit();
  }
  folder.commit();
}

/// Returns the text of both files; "" if there is no whole folder.
std::string content_of(const std::string& path) {
  const auto text = read_file(path + "/a");
  return names_in(path).size() == 2 && text == read_file(path + "/b") ? text
                                                                      : "";
}

int steps_of_a_replacement() {
  const TemporaryFolder parent;
  replace(parent / "f", "old");
  WatchedDisk disk([](int) { return 0; });
  replace(parent / "f", "new", disk);
  return disk.steps();
}

TEST_CASE("A folder is created and replaced", "[atomic_folder]") {
  const TemporaryFolder parent;
  replace(parent / "f", "one");
  CHECK(content_of(parent / "f") == "one");
  replace(parent / "f/", "two");
  CHECK(content_of(parent / "f") == "two");
  REQUIRE(::symlink("f", (parent / "link").c_str()) == 0);
  replace(parent / "link", "three");
  CHECK(content_of(parent / "f") == "three");
  CHECK(parent.size() == 2);
}

TEST_CASE("A kill at any step leaves the old or the new folder",
          "[atomic_folder]") {
  const int steps = steps_of_a_replacement();
  REQUIRE(steps > 10);
  std::string last = "old";
  for (int kill = 0; kill < steps; ++kill) {
    CAPTURE(kill);
    const TemporaryFolder parent;
    replace(parent / "f", "old");
    const int status = ddp::test::status_of_child([&] {
      WatchedDisk disk(
          [kill](int step) { return step == kill ? ::raise(SIGKILL) : 0; });
      replace(parent / "f", "new", disk);
    });
    CHECK(WIFSIGNALED(status));
    const auto found = content_of(parent / "f");
    CHECK((found == last || (last == "old" && found == "new")));
    last = found;
    replace(parent / "f", "next");
    CHECK(content_of(parent / "f") == "next");
    CHECK(parent.size() == 1);
  }
  CHECK(last == "new");
}

TEST_CASE("A disk that fails at any step leaves the old or the new folder",
          "[atomic_folder]") {
  const int steps = steps_of_a_replacement();
  for (int bad = 0; bad < steps; ++bad) {
    CAPTURE(bad);
    const TemporaryFolder parent;
    replace(parent / "f", "old");
    WatchedDisk disk([bad](int step) { return step == bad ? EIO : 0; });
    bool is_told = false;
    try {
      replace(parent / "f", "new", disk);
    } catch (const std::exception& error) {
      is_told = true;
      CHECK_THAT(error.what(), Contains("Input/output error"));
    }
    const auto found = content_of(parent / "f");
    CHECK((found == "new" || (found == "old" && is_told)));
    replace(parent / "f", "next");
    CHECK(content_of(parent / "f") == "next");
    CHECK(parent.size() == 1);
  }
}

TEST_CASE("A file system that exchanges no folders is an error",
          "[atomic_folder]") {
  struct NoExchange : Disk {
    int exchange(const std::string&, const std::string&) override {
      return EINVAL;
    }
  };
  const TemporaryFolder parent;
  NoExchange disk;
  replace(parent / "f", "old", disk);
  CHECK_THROWS_WITH(replace(parent / "f", "new", disk),
                    Contains("choose a folder that does not exist"));
  CHECK(content_of(parent / "f") == "old");
  CHECK(parent.size() == 1);
}

TEST_CASE("A folder with other files is left alone", "[atomic_folder]") {
  const TemporaryFolder parent;
  const auto path = parent / GENERATE("f", "f.tmp");
  REQUIRE(::mkdir(path.c_str(), 0777) == 0);
  write_file(path + "/x", "mine");
  CHECK_THROWS_WITH(replace(parent / "f", "new"),
                    Contains(path + " has another file, \"x\""));
  CHECK(read_file(path + "/x") == "mine");
  write_file(parent / "file", "mine");
  CHECK_THROWS_WITH(replace(parent / "file", "new"),
                    Contains("Not a directory"));
}

}  // namespace atomic_folder_test
