#include "ddp/base/job_files/progress_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "launcher/workers/progress/progress_text.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using ddp::detail::ProgressFile;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using launcher::describe;
using launcher::parse_progress;
using namespace std::chrono_literals;

TEST_CASE("a progress file of the library's is a line that ddprun reads") {
  const TemporaryFolder folder;
  const std::string path = folder / "progress";
  write_file(path, "");
  ProgressFile file(path);
  REQUIRE(file.is_open());
  const auto now = [&path] { return parse_progress(read_file(path)); };
  CHECK(now().pid == ::getpid());
  CHECK(now().collectives == 0);
  CHECK(now().passes == 0);
  CHECK(!now().waits);
  CHECK(now().text.empty());
  // Until the first backward pass has ended.
  CHECK(now().limit->times == 5);

  file.note_collective();
  file.set_text("all-reduce of gradients");
  file.set_waits(true);
  CHECK(now().collectives == 1);
  CHECK(now().waits);
  CHECK(describe(now()) ==
        "all-reduce of gradients, before the end of a backward pass, in "
        "collective 1");
  file.set_waits(false);
  file.note_pass();
  CHECK(now().passes == 1);
  CHECK(!now().limit);
  CHECK(!now().waits);

  file.set_limit(600s);
  CHECK(now().limit->time == 600s);
  file.set_limit(0s);
  CHECK(!now().limit);
  file.set_limit(100h * 24 * 365);
  CHECK(now().limit->time == 24h * 366);
  file.retire();
  file.set_limit(1s);  // a remaining guard ends
  CHECK(now().limit->time == 24h * 366);
  file.begin();
  CHECK(now().limit->time == 1s);
  file.set_text(std::string(1000, 'x') + "\xff");
  CHECK(now().text == std::string(63, 'x'));
  CHECK(read_file(path).back() == '\n');
}

TEST_CASE("the first step may take longer, also where nothing is reduced") {
  const TemporaryFolder folder;
  const std::string path = folder / "progress";
  write_file(path, "");
  ProgressFile file(path);
  file.note_forward();
  CHECK(parse_progress(read_file(path)).limit->times == 5);
  file.note_forward();
  CHECK(!parse_progress(read_file(path)).limit);
}

TEST_CASE("each report of the library's changes the file") {
  const TemporaryFolder folder;
  const std::string path = folder / "progress";
  write_file(path, "");
  ProgressFile file(path);
  std::string last = read_file(path);
  const auto changed = [&] {
    return std::exchange(last, read_file(path)) != last;
  };
  for (int round = 0; round < 12; ++round) {
    file.beat();
    CHECK(changed());
    file.note_collective();
    CHECK(changed());
    file.set_waits(true);
    CHECK(changed());
    file.set_waits(false);
    CHECK(changed());
    file.note_forward();
    CHECK(changed());
    file.note_pass();
    CHECK(changed());
    file.set_limit(60s);
    CHECK(changed());
  }
}

TEST_CASE("what is no progress file is left alone") {
  const TemporaryFolder folder;
  const std::string path = folder / "other";
  SECTION("nothing is there") {
    CHECK(!ProgressFile(path).is_open());
  }
  SECTION("a FIFO") {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(!ProgressFile(path).is_open());
  }
  SECTION("a link") {
    write_file(folder / "target", "mine");
    REQUIRE(::symlink((folder / "target").c_str(), path.c_str()) == 0);
    CHECK(!ProgressFile(path).is_open());
    CHECK(read_file(folder / "target") == "mine");
  }
  ProgressFile closed(path);
  closed.beat();
  closed.note_pass();
  closed.set_text("x");
  closed.set_limit(1s);
  closed.retire();
}
