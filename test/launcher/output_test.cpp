#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "launcher/base/last_lines.h"
#include "launcher/base/line_splitter.h"
#include "launcher/base/text.h"
#include "launcher/machine/pseudo_terminal.h"
#include "launcher/plan/name_template.h"
#include "launcher/workers/output/console.h"
#include "launcher/workers/output/dropped_output.h"
#include "launcher/workers/output/filtered_log.h"
#include "launcher/workers/output/worker_output.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher;

namespace {

using Lines = std::vector<std::pair<std::string, LineEnd>>;

/// Returns the lines that a LineSplitter makes of pieces of text.
Lines split(const std::vector<std::string>& pieces, size_t longest = 1000) {
  Lines lines;
  const auto take = [&lines](std::string_view line, LineEnd end) {
    lines.emplace_back(line, end);
  };
  LineSplitter splitter(longest);
  for (const auto& piece : pieces) {
    splitter.feed(piece, take);
  }
  splitter.finish(take);
  return lines;
}

constexpr auto kNewline = LineEnd::newline;
constexpr auto kReturn = LineEnd::carriage_return;
constexpr auto kCut = LineEnd::cut;

std::string read_all(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

void await_drained(EventLoop& loop, const OutputThread& thread) {
  while (!thread.is_drained()) {
    loop.run_once();
  }
}

/// Returns the text that the thread still writes into a pipe.
std::string read_rest(EventLoop& loop,
                      const OutputThread& thread,
                      const Fd& reader) {
  REQUIRE(::fcntl(reader.get(), F_SETFL, O_NONBLOCK) == 0);
  std::string text;
  const auto watch =
      loop.watch(reader.get(), EPOLLIN, [&] { text += read_all(reader); });
  await_drained(loop, thread);
  loop.unwatch(watch);
  return text + read_all(reader);
}

}  // namespace

TEST_CASE("lines are whole whatever pieces they come in") {
  const Lines expected{{"one", kNewline}, {"", kNewline}, {"two", kNewline}};
  CHECK(split({"one\n\ntwo\n"}) == expected);
  CHECK(split({"o", "ne", "\n", "\n", "t", "wo\n"}) == expected);
  CHECK(split({"one\n\nt", "", "wo", "\n"}) == expected);
  CHECK(split({}) == Lines{});
}

TEST_CASE("an unfinished last line is not lost") {
  CHECK(split({"one\ntw", "o"}) == Lines{{"one", kNewline}, {"two", kCut}});
}

TEST_CASE("a line without end is cut at the bound") {
  CHECK(split({"abcdefgh", "ij\n"}, 4) ==
        Lines{{"abcd", kCut}, {"efghij", kNewline}});
  const std::string exact(4, 'x');
  CHECK(split({exact, "\n"}, 4) == Lines{{exact, kNewline}});
}

TEST_CASE("a carriage return ends a step, unless a newline follows") {
  CHECK(split({"1%\r2%\r\n"}) == Lines{{"1%", kReturn}, {"2%", kNewline}});
  CHECK(split({"\r1%\r2%\rdone\n"}) ==
        Lines{{"1%", kReturn}, {"2%", kReturn}, {"done", kNewline}});
  CHECK(split({"a\r\nb\r", "\nc\r", "d"}) ==
        Lines{{"a", kNewline}, {"b", kNewline}, {"c", kReturn}, {"d", kCut}});
  CHECK(split({"a\r"}) == Lines{{"a", kCut}});
}

TEST_CASE("random bytes in random pieces: nothing is lost or added") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (int index = 0; index < 300; ++index) {
      bytes += "ab\n"[random() % 3];
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + random() % 40;
      pieces.push_back(bytes.substr(at, size));
      at += size;
    }
    std::string joined;
    for (const auto& [line, end] : split(pieces)) {
      CHECK(line.find('\n') == std::string::npos);
      joined += line + (end == kNewline ? "\n" : "");
    }
    CHECK(joined == bytes);
  }
}

TEST_CASE("a console that nobody reads holds back, then gives all") {
  EventLoop loop;
  test::bound(loop);
  Pipe pipe = make_pipe();
  DroppedOutput losses;
  Console console(pipe.write.get(), loop, losses);
  std::string expected;
  for (int line = 0; !console.thread().is_congested(); ++line) {
    const std::string text = "line " + std::to_string(line);
    console.write_line({"[3] ", text});
    console.flush();
    expected += "[3] " + text + "\n";
  }
  CHECK(!console.thread().is_drained());
  CHECK(read_rest(loop, console.thread(), pipe.read) == expected);
  // The flags of the caller's own descriptor are unchanged.
  CHECK((::fcntl(pipe.write.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("a console whose reader is gone drops what comes") {
  ::signal(SIGPIPE, SIG_IGN);
  EventLoop loop;
  test::bound(loop);
  Pipe pipe = make_pipe();
  DroppedOutput losses;
  Console console(pipe.write.get(), loop, losses);
  pipe.read.reset();
  console.write_line({"", "text"});
  console.flush();
  await_drained(loop, console.thread());
  CHECK(losses.empty());
  ::signal(SIGPIPE, SIG_DFL);
}

TEST_CASE("what a full device does not take is noted, the first time told") {
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  Lines told;
  losses.on_first_loss(
      [&](const std::string& line) { told.emplace_back(line, kNewline); });
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  Console console(full.get(), loop, losses);
  CHECK(losses.summary().empty());
  for (int line = 0; line < 3; ++line) {
    console.write_line({"[0] ", "text"});
    console.flush();
    await_drained(loop, console.thread());
  }
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0].first,
             Contains("stdout cannot be written (No space left on device)"));
  CHECK_THAT(losses.summary(), Contains(": 27 bytes of stdout"));
}

namespace {

/// Limits the size of files in a scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  sighandler_t old_handler_;
};

Fd open_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  return file;
}

}  // namespace

namespace {

/// Returns whether another descriptor may write to the file.
bool is_open_for_writing(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return ::fcntl(file.get(), F_SETLEASE, F_RDLCK) != 0;
}

}  // namespace

TEST_CASE("a console goes on in whole lines once there is room again") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "console";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  const FileSizeLimit limit(10);
  const Fd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  Console console(file.get(), loop, losses);
  const auto write = [&](const std::string& line) {
    console.write_line({"", line});
    console.flush();
    await_drained(loop, console.thread());
  };
  write("first");
  write("second");
  write("third");
  CHECK(ddp::test::read_file(path) == "first\nseco");
  REQUIRE(::truncate(path.c_str(), 3) == 0);  // makes room again
  write("4");
  write("5");
  CHECK(ddp::test::read_file(path) == "fir\n4\n5\n");
  CHECK_THAT(losses.summary(), Contains(": 9 bytes of stdout"));
}

TEST_CASE("a console that is a file gets long output as it is") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "console";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  const Fd file = open_file(path);
  Console console(file.get(), loop, losses);
  std::string expected;
  for (int line = 0; line < 200; ++line) {
    const std::string text(1000, static_cast<char>('a' + line % 26));
    console.write_line({"[0] ", text});
    console.flush();
    expected += "[0] " + text + "\n";
  }
  await_drained(loop, console.thread());
  CHECK(ddp::test::read_file(path) == expected);
  CHECK(losses.empty());
}

TEST_CASE("a log file takes what it can, and what it cannot is noted") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "log";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  const FileSizeLimit limit(4);
  OutputFile log(
      Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)),
      path,
      logs);
  log.write("abcdef");
  log.write("gh");
  await_drained(loop, logs);
  CHECK(ddp::test::read_file(path) == "abcd");
  REQUIRE(::truncate(path.c_str(), 0) == 0);  // makes room again
  log.write("ij");
  log.finish();
  await_drained(loop, logs);
  CHECK(ddp::test::read_file(path) == "\nij");  // a line of its own
  CHECK_THAT(losses.summary(), Contains(": 4 bytes of " + path));
}

TEST_CASE("log files are written in order, whole, and closed") {
  const ddp::test::TemporaryFolder folder;
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  std::vector<OutputFile> files;
  std::vector<std::string> expected(3);
  for (size_t file = 0; file < expected.size(); ++file) {
    const std::string path = folder / std::to_string(file);
    files.emplace_back(open_file(path), path, logs);
  }
  CHECK(is_open_for_writing(folder / "0"));
  for (size_t piece = 0; piece < 300; ++piece) {
    const size_t file = piece % files.size();
    const std::string text(piece * 300, static_cast<char>('a' + piece % 26));
    files[file].write(text);
    expected[file] += text;
  }
  for (OutputFile& file : files) {
    file.finish();
  }
  await_drained(loop, logs);
  CHECK(losses.empty());
  for (size_t file = 0; file < expected.size(); ++file) {
    CHECK(ddp::test::read_file(folder / std::to_string(file)) ==
          expected[file]);
    CHECK(!is_open_for_writing(folder / std::to_string(file)));
  }
}

TEST_CASE("a console that nobody reads does not hold up a stream with a file") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  EventLoop loop;
  test::bound(loop);
  Pipe out = make_pipe();
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Console console(out.write.get(), loop, losses);
  std::optional<WorkerOutput> output(std::in_place, loop);
  Pipe worker = make_pipe();
  StreamTargets targets{
      .console = &console, .prefix = "[0] ", .file = {}, .file_path = path};
  targets.file.emplace(open_file(path), path, logs);
  output->add(std::move(worker.read), std::move(targets));
  CHECK(::fcntl(worker.write.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string line = std::string(999, 'x') + "\n";
  size_t written = 0;
  while (written < 3'000'000) {
    const ssize_t size = ::write(worker.write.get(), line.data(), line.size());
    if (size > 0) {
      written += static_cast<size_t>(size);
    } else {
      loop.run_once();
    }
  }
  worker.write.reset();
  output->finish();
  while (!logs.is_drained()) {
    loop.run_once();
  }
  CHECK(ddp::test::read_file(path).size() == written);
  // The reader reads again.
  const std::string text = read_rest(loop, console.thread(), out.read);
  CHECK(text.size() < 1'500'000);
  CHECK_THAT(text,
             Contains("[0] ddprun: nobody read this for a time; ") &&
                 Contains(" can be found in " + path + "\n"));
}

TEST_CASE("lines that a filtered log has no room for are not read") {
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  Pipe server = make_pipe();  // does not answer, until it is read
  FilteredLog filtered(OutputFile(std::move(server.write), "log", logs), {"x"});
  Pipe worker = make_pipe();
  WorkerOutput output(loop);
  output.add(std::move(worker.read),
             {.prefix = "[0] ", .file = {}, .filtered = &filtered});
  CHECK(::fcntl(worker.write.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string line = std::string(999, 'x') + "\n";
  size_t written = 0;
  for (int round = 0; round < 4'000; ++round) {
    while (::write(worker.write.get(), line.data(), line.size()) > 0) {
      written += line.size();
    }
    loop.arm_timer("round", std::chrono::milliseconds(0), [] {});
    loop.run_once();
  }
  CHECK(written > 1'000'000);
  CHECK(written < 3'000'000);
  worker.write.reset();
  const size_t expected = written / line.size() * (line.size() + 4);
  CHECK(::fcntl(server.read.get(), F_SETFL, O_NONBLOCK) == 0);
  size_t arrived = 0;
  const auto watch = loop.watch(server.read.get(), EPOLLIN, [&] {
    arrived += read_all(server.read).size();
  });
  while (arrived < expected) {
    loop.run_once();
  }
  output.finish();
  filtered.finish();
  await_drained(loop, logs);
  loop.unwatch(watch);
  CHECK(arrived == expected);
  CHECK(losses.empty());
}

TEST_CASE("a task that is not done at the end is no lost output") {
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  OutputThread logs(loop, losses);
  const auto server = std::make_shared<Pipe>(make_pipe());
  logs.run(
      [server] {
        char byte = 0;
        [[maybe_unused]] const auto end = ::read(server->read.get(), &byte, 1);
      },
      [] {});
  logs.abandon();
  CHECK(losses.empty());
  server->write.reset();
}

TEST_CASE("of many losses a few are named") {
  DroppedOutput losses;
  for (const char* place : {"e", "d", "c", "b", "a"}) {
    losses.add(place, 2, ENOSPC);
  }
  losses.add("a", 0, ENOSPC);
  CHECK(losses.summary() ==
        "output was lost, so this is no success: 2 bytes of a, 2 bytes of b, 2 "
        "bytes of c and of 2 other files");
  DroppedOutput small;
  for (const char* place : {"d", "c", "b", "a"}) {
    small.add(place, 1, ENOSPC);
  }
  CHECK_THAT(small.summary(),
             Contains("1 byte of a, ") && Contains(" and of 1 other file") &&
                 !Contains("files"));
  DroppedOutput unknown;
  unknown.add("x", 0, EDQUOT);
  CHECK_THAT(unknown.summary(), Contains(": the end of x"));
}

TEST_CASE("a congested console stops the reading, not the loop") {
  EventLoop loop;
  test::bound(loop);
  Pipe out = make_pipe();
  DroppedOutput losses;
  Console console(out.write.get(), loop, losses);
  WorkerOutput output(loop);
  Pipe worker = make_pipe();
  const auto& stream = output.add(std::move(worker.read),
                                  {.console = &console,
                                   .prefix = "[0] ",
                                   .file = {},
                                   .keeps_last_lines = true});
  CHECK(::fcntl(worker.write.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string line = std::string(1000, 'x') + "\n";
  size_t written = 0;
  while (!console.thread().is_congested()) {
    const ssize_t size = ::write(worker.write.get(), line.data(), line.size());
    if (size > 0) {
      written += static_cast<size_t>(size);
    }
    loop.run_once();
  }
  CHECK(written > 1000);
  // The worker's pipe fills up: the worker blocks, and no output is dropped.
  size_t unread = 0;
  for (int round = 0; round < 30; ++round) {
    ssize_t size = 0;
    while ((size = ::write(worker.write.get(), line.data(), line.size())) > 0) {
      unread += static_cast<size_t>(size);
    }
    loop.arm_timer("round", std::chrono::milliseconds(0), [] {});
    loop.run_once();
  }
  CHECK(unread <= 64 * 1024);
  written += unread;
  worker.write.reset();
  output.finish();
  const std::string text = read_rest(loop, console.thread(), out.read);
  CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), 'x')) ==
        written - written / 1001);
  CHECK(stream.last_lines().size() == 20);
}

TEST_CASE("one prefix a line, however late its end comes") {
  EventLoop loop;
  test::bound(loop);
  Pipe out = make_pipe();
  DroppedOutput losses;
  Console console(out.write.get(), loop, losses);
  Pipe worker = make_pipe();
  WorkerStream stream(std::move(worker.read),
                      {.console = &console, .prefix = "[3] ", .file = {}});
  for (const std::string piece : {"one", " and", " half\ntwo\nthr", "ee"}) {
    REQUIRE(::write(worker.write.get(), piece.data(), piece.size()) ==
            static_cast<ssize_t>(piece.size()));
    CHECK(stream.read_some() == WorkerStream::State::open);
  }
  stream.finish();
  CHECK(read_rest(loop, console.thread(), out.read) ==
        "[3] one and half\n[3] two\n[3] three\n");
}

namespace {

/// Two workers with one console.
class TwoWorkers {
 public:
  explicit TwoWorkers(Pipe console)
      : reader_(std::move(console.read)),
        console_(console.write.get(), loop_, losses_),
        output_(loop_) {
    test::bound(loop_);
    REQUIRE(::fcntl(reader_.get(), F_SETFL, O_NONBLOCK) == 0);
    for (const char* prefix : {"[0] ", "[1] "}) {
      Pipe pipe = make_pipe();
      streams_.push_back(&output_.add(
          std::move(pipe.read),
          {.console = &console_, .prefix = prefix, .keeps_last_lines = true}));
      workers_.push_back(std::move(pipe.write));
    }
  }

  void write(size_t worker, const std::string& text) {
    REQUIRE(::write(workers_[worker].get(), text.data(), text.size()) ==
            static_cast<ssize_t>(text.size()));
  }

  /// Writes as a worker, and checks the text on the console.
  void check(size_t worker,
             const std::string& text,
             const std::string& expected) {
    write(worker, text);
    std::string shown;
    const auto watch = loop_.watch(
        reader_.get(), EPOLLIN, [&] { shown += read_all(reader_); });
    while (shown.size() < expected.size()) {
      loop_.run_once();
    }
    loop_.unwatch(watch);
    CHECK(shown == expected);
  }

  std::vector<std::string> last_lines(size_t worker) const {
    return streams_[worker]->last_lines();
  }

 private:
  EventLoop loop_;
  DroppedOutput losses_;
  Fd reader_;
  Console console_;
  WorkerOutput output_;
  std::vector<const WorkerStream*> streams_;
  std::vector<Fd> workers_;
};

}  // namespace

TEST_CASE("a line without an end is shown, and its rest continues it") {
  const bool is_terminal = GENERATE(false, true);
  TwoWorkers workers(is_terminal ? make_pseudo_terminal({}) : make_pipe());
  workers.check(0, "load", "[0] load");
  workers.check(0, " more", " more");
  workers.check(0, ", done\n", ", done\n");
  workers.check(0, "half", "[0] half");
  workers.check(1, "whole\n", "\n[1] whole\n");
  workers.check(0, " and half\n", "[0]  and half\n");
  workers.check(1, "asks?", "[1] asks?");
  workers.check(0, "says\n", "\n[0] says\n");
  // The end of a line that is already ended shows nothing.
  workers.check(1, "\nnext\n", "[1] next\n");
  CHECK(workers.last_lines(0) ==
        std::vector<std::string>{"load more, done", "half and half", "says"});
  CHECK(workers.last_lines(1) ==
        std::vector<std::string>{"whole", "asks?", "next"});
}

TEST_CASE("a line that has ended is whole, however late ddprun reads its end") {
  TwoWorkers workers(make_pipe());
  workers.check(0, "one\nhalf", "[0] one\n");
  // ddprun stands still for longer than a line may take.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  workers.write(1, "whole\n");
  workers.check(0, " and half\n", "[0] half and half\n[1] whole\n");
}

TEST_CASE("each step of a progress bar is shown, on a line of its rank's own") {
  TwoWorkers workers(make_pipe());
  workers.check(0, "10%\r", "[0] 10%");
  workers.check(0, "20%\r", "\r[0] 20%");
  workers.check(1, "hi\n", "\n[1] hi\n");
  workers.check(0, "30%\r\n", "[0] 30%\n");
}

TEST_CASE("on a terminal the next line replaces a step of a progress bar") {
  TwoWorkers workers(make_pseudo_terminal({}));
  const std::string erase = "\x1b[K";
  workers.check(0, "10%\r", "[0] 10%");
  workers.check(0, "\r20%", erase + "\r[0] 20%" + erase + "\r");
  workers.check(1, "hi\n", "[1] hi" + erase + "\n");
  workers.check(0, "\rdone\n", "[0] 20%" + erase + "\r[0] done" + erase + "\n");
}

TEST_CASE("a process that goes on writing does not hold up the end") {
  // Like a pipe that always has more.
  WorkerStream stream(Fd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)),
                      {.prefix = "", .file = {}});
  stream.finish();
  CHECK(stream.last_lines().empty());
}

TEST_CASE("names in a template get their values, all else stays as it is") {
  const NameTemplate::Values values{
      {"rank", "3"}, {"local_rank", "$rank"}, {"_x1", "y"}};
  const std::vector<std::pair<std::string, std::string>> rows{
      {"", ""},
      {"plain", "plain"},
      {"[${rank}] ", "[3] "},
      {"$rank$rank", "33"},
      {"$local_rank.pt", "$rank.pt"},
      {"$_x1$rank_of", "y$rank_of"},
      {"$$rank ${$rank} $$$rank", "$rank ${3} $3"},
      {"${rank ${ $ } ${}", "${rank ${ $ } ${}"},
      {"${rank}} $5 ${5} $", "3} $5 ${5} $"},
      {"${world_size} $RANK \u00e4$rank", "${world_size} $RANK \u00e43"}};
  for (const auto& [pattern, expected] : rows) {
    CHECK(NameTemplate(pattern).filled(values) == expected);
  }
}

TEST_CASE("a shortened text has its beginning and its end, in whole letters") {
  CHECK(shortened("", 0).empty());
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdefghi", 6) == "abcd [... 3 bytes ...] hi");
  CHECK(shortened("abcdefghi", 8) == "abcdef [... 1 byte ...] hi");
  CHECK(shortened("one two three four five six seven eight", 30) ==
        "one two three four [... 16 bytes ...] eight");
  // Each letter has two bytes.
  std::string text;
  for (int letter = 0; letter < 20; ++letter) {
    text += "\u00e4";
  }
  for (size_t most = 0; most < text.size(); ++most) {
    const std::string cut = shortened(text, most);
    CAPTURE(most, cut);
    CHECK(std::count(cut.begin(), cut.end(), '\xc3') ==
          std::count(cut.begin(), cut.end(), '\xa4'));
  }
  // Invalid UTF-8 is shortened, too.
  CHECK(shortened(std::string(100, '\x80'), 6).size() < 30);
}

TEST_CASE("the last lines: the message of an exception, not its backtrace") {
  LastLines last;
  last.add("  what():  Expected a batch, but got none");
  last.add(
      "Exception raised from load at data.cpp:7 (most recent call first):");
  for (int frame = 0; frame < 40; ++frame) {
    last.add("frame #" + std::to_string(frame) + ": main + 0x1f (0x7f in ./t)");
    last.add("[rank0]: frame #" + std::to_string(frame) +
             ": f() (0x7f in ./t)");
  }
  last.add("");
  last.add("frame by frame");
  last.add("");
  last.add("frame #x: of a film");
  CHECK(last.get() ==
        std::vector<std::string>{
            "  what():  Expected a batch, but got none",
            "Exception raised from load at data.cpp:7 (most recent call "
            "first):",
            "frame by frame",
            "",
            "frame #x: of a film"});
  for (int line = 0; line < 50; ++line) {
    last.add(std::to_string(line));
  }
  REQUIRE(last.get().size() == 20);
  CHECK(last.get().front() == "30");
  last.add("begin" + std::string(5000, 'x') + "end");
  CHECK(last.get().back().size() < 900);
  CHECK_THAT(last.get().back(), Contains("beginx") && Contains("xend"));
}

TEST_CASE("a worker's terminal leaves room for the prefix, or is a usual one") {
  const auto columns = [](std::optional<winsize> own, size_t prefix) {
    return terminal_size(own, prefix).ws_col;
  };
  CHECK(columns(winsize{40, 120, 0, 0}, 4) == 116);
  CHECK(terminal_size(winsize{40, 120, 0, 0}, 4).ws_row == 40);
  CHECK(columns(winsize{40, 30, 0, 0}, 28) == 30);
  CHECK(columns({}, 4) == 80);
  CHECK(terminal_size({}, 4).ws_row == 24);
}
