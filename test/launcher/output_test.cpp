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

#include "launcher/base/last_lines.h"
#include "launcher/base/line_splitter.h"
#include "launcher/base/text.h"
#include "launcher/machine/pseudo_terminal.h"
#include "launcher/plan/name_template.h"
#include "launcher/workers/output/console.h"
#include "launcher/workers/output/dropped_output.h"
#include "launcher/workers/output/filtered_log.h"
#include "launcher/workers/output/log_file.h"
#include "launcher/workers/output/worker_output.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher;

namespace {

using Lines = std::vector<std::pair<std::string, LineEnd>>;

/// Returns the lines that a LineSplitter makes of pieces of text.
Lines split(const std::vector<std::string>& pieces,
            LineSplitter::Returns returns = LineSplitter::Returns::in_text,
            size_t longest = 1000) {
  Lines lines;
  const auto take = [&lines](std::string_view line, LineEnd end) {
    lines.emplace_back(line, end);
  };
  LineSplitter splitter(returns, longest);
  for (const auto& piece : pieces) {
    splitter.feed(piece, take);
  }
  splitter.finish(take);
  return lines;
}

constexpr auto kNewline = LineEnd::newline;
constexpr auto kReturn = LineEnd::carriage_return;
constexpr auto kCut = LineEnd::cut;
constexpr auto kEndLines = LineSplitter::Returns::end_lines;

std::string read_all(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
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
  CHECK(split({"abcdefgh", "ij\n"}, LineSplitter::Returns::in_text, 4) ==
        Lines{{"abcd", kCut}, {"efghij", kNewline}});
  const std::string exact(4, 'x');
  CHECK(split({exact, "\n"}, LineSplitter::Returns::in_text, 4) ==
        Lines{{exact, kNewline}});
}

TEST_CASE("carriage returns are text, unless a terminal asks for more") {
  CHECK(split({"1%\r2%\r\n"}) == Lines{{"1%\r2%\r", kNewline}});
  CHECK(split({"\r1%\r2%\rdone\n"}, kEndLines) ==
        Lines{{"1%", kReturn}, {"2%", kReturn}, {"done", kNewline}});
  CHECK(split({"a\r\nb\r", "\nc\r", "d"}, kEndLines) ==
        Lines{{"a", kNewline}, {"b", kNewline}, {"c", kReturn}, {"d", kCut}});
  CHECK(split({"a\r"}, kEndLines) == Lines{{"a", kCut}});
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
  LogWriter logs(loop, losses);
  Console console(pipe.write.get(), loop, losses, logs);
  std::string expected;
  for (int line = 0; !console.is_congested(); ++line) {
    const std::string text = "line " + std::to_string(line);
    console.write_line("[3] ", text, kNewline);
    expected += "[3] " + text + "\n";
    console.flush();  // does not block on the full pipe
  }
  CHECK(!console.is_drained());
  CHECK(::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK) == 0);
  std::string text = read_all(pipe.read);
  while (!console.is_drained()) {
    loop.run_once();
    text += read_all(pipe.read);
  }
  CHECK(text == expected);
  // The flags of the caller's own descriptor are unchanged.
  CHECK((::fcntl(pipe.write.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("a console whose reader is gone drops what comes") {
  ::signal(SIGPIPE, SIG_IGN);
  EventLoop loop;
  test::bound(loop);
  Pipe pipe = make_pipe();
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  Console console(pipe.write.get(), loop, losses, logs);
  pipe.read.reset();
  console.write_line("", "text", kNewline);
  console.flush();
  CHECK(console.is_drained());
  CHECK(losses.empty());
  ::signal(SIGPIPE, SIG_DFL);
}

TEST_CASE("what a full device does not take is noted, the first time told") {
  EventLoop loop;
  DroppedOutput losses;
  Lines told;
  losses.tell_by(
      [&](const std::string& line) { told.emplace_back(line, kNewline); });
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  LogWriter logs(loop, losses);
  Console console(full.get(), loop, losses, logs);
  CHECK(losses.summary().empty());
  for (int line = 0; line < 3; ++line) {
    console.write_line("[0] ", "text", kNewline);
    console.flush();
    CHECK(console.is_drained());
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

void await_drained(EventLoop& loop, const LogWriter& logs) {
  while (!logs.is_drained()) {
    loop.run_once();
  }
}

/// Sends a signal to the child processes of this process.
void signal_helpers(int number) {
  const auto self = std::to_string(::getpid());
  std::ifstream children("/proc/self/task/" + self + "/children");
  for (pid_t child = 0; children >> child;) {
    ::kill(child, number);
  }
}

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
  LogWriter logs(loop, losses);
  const FileSizeLimit limit(10);
  const Fd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  Console console(file.get(), loop, losses, logs);
  const auto write = [&](const std::string& line) {
    console.write_line("", line, kNewline);
    console.flush();
    await_drained(loop, logs);
    CHECK(console.is_drained());
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
  LogWriter logs(loop, losses);
  const Fd file = open_file(path);
  Console console(file.get(), loop, losses, logs);
  std::string expected;
  for (int line = 0; line < 200; ++line) {
    const std::string text(1000, static_cast<char>('a' + line % 26));
    console.write_line("[0] ", text, kNewline);
    expected += "[0] " + text + "\n";
  }
  console.flush();
  await_drained(loop, logs);
  CHECK(ddp::test::read_file(path) == expected);
  CHECK(losses.empty());
}

TEST_CASE("a console is a file again after its writer was killed") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "console";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  const Fd file = open_file(path);
  const std::string log = folder / "log";
  LogFile lost(open_file(log), log, logs);
  Console console(file.get(), loop, losses, logs);
  const auto write = [&](const std::string& line) {
    console.write_line("", line, kNewline);
    console.flush();
    await_drained(loop, logs);
  };
  write("before");
  signal_helpers(SIGKILL);
  while (losses.empty()) {
    loop.run_once();
  }
  write("after");
  CHECK(ddp::test::read_file(path) == "before\nafter\n");
  // Another file now has this descriptor's number. It must not get these bytes.
  lost.write("lost");
  await_drained(loop, logs);
  CHECK(ddp::test::read_file(log).empty());
  CHECK_THAT(losses.summary(), Contains("bytes of " + log));
}

TEST_CASE("a log file takes what it can, and what it cannot is noted") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "log";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  const FileSizeLimit limit(4);
  LogFile log(
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
  CHECK(ddp::test::read_file(path) == "ij");
  CHECK_THAT(losses.summary(), Contains(": 4 bytes of " + path));
}

TEST_CASE("log files are written in order, whole, and closed") {
  const ddp::test::TemporaryFolder folder;
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  std::vector<LogFile> files;
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
  CHECK(logs.is_congested());
  for (LogFile& file : files) {
    file.finish();
  }
  await_drained(loop, logs);
  CHECK(!logs.is_congested());
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
  LogWriter logs(loop, losses);
  Console console(out.write.get(), loop, losses, logs);
  const auto rounds = loop.watch_rounds([&console] { console.flush(); });
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
  CHECK(::fcntl(out.read.get(), F_SETFL, O_NONBLOCK) == 0);
  std::string text;
  while (!console.is_drained()) {
    text += read_all(out.read);
    loop.run_once();
  }
  text += read_all(out.read);
  loop.unwatch(rounds);
  CHECK(text.size() < 1'500'000);
  CHECK_THAT(text,
             Contains("[0] ddprun: nobody read this for a time; ") &&
                 Contains(" can be found in " + path + "\n"));
}

TEST_CASE("lines that a filtered log has no room for are not read") {
  const ddp::test::TemporaryFolder folder;
  const std::string path = folder / "filtered_stdout.log";
  EventLoop loop;
  test::bound(loop);
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  FilteredLog filtered(LogFile(open_file(path), path, logs), {"x"});
  Pipe worker = make_pipe();
  WorkerOutput output(loop);
  output.add(std::move(worker.read),
             {.prefix = "[0] ", .file = {}, .filtered = &filtered});
  // The writer process is stopped, so it reads nothing.
  signal_helpers(SIGSTOP);
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
  signal_helpers(SIGCONT);
  worker.write.reset();
  const size_t expected = written / line.size() * (line.size() + 4);
  while (std::filesystem::file_size(path) < expected) {
    loop.run_once();
  }
  output.finish();
  filtered.finish();
  await_drained(loop, logs);
  CHECK(std::filesystem::file_size(path) == expected);
  CHECK(losses.empty());
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
  LogWriter logs(loop, losses);
  Console console(out.write.get(), loop, losses, logs);
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
  while (!console.is_congested()) {
    const ssize_t size = ::write(worker.write.get(), line.data(), line.size());
    if (size > 0) {
      written += static_cast<size_t>(size);
    }
    loop.run_once();
    console.flush();
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
  CHECK(::fcntl(out.read.get(), F_SETFL, O_NONBLOCK) == 0);
  std::string text;
  const auto payload = [&text] {
    return static_cast<size_t>(std::count(text.begin(), text.end(), 'x'));
  };
  output.finish();
  while (!console.is_drained()) {
    text += read_all(out.read);
    console.flush();
    if (!console.is_drained()) {
      loop.run_once();
    }
  }
  text += read_all(out.read);
  CHECK(payload() == written - written / 1001);
  CHECK(stream.last_lines().size() == 20);
}

TEST_CASE("one prefix a line, however late its end comes") {
  EventLoop loop;
  Pipe out = make_pipe();
  DroppedOutput losses;
  LogWriter logs(loop, losses);
  Console console(out.write.get(), loop, losses, logs);
  Pipe worker = make_pipe();
  WorkerStream stream(std::move(worker.read),
                      {.console = &console, .prefix = "[3] ", .file = {}});
  for (const std::string piece : {"one", " and", " half\ntwo\nthr", "ee"}) {
    REQUIRE(::write(worker.write.get(), piece.data(), piece.size()) ==
            static_cast<ssize_t>(piece.size()));
    CHECK(stream.read_some() == WorkerStream::State::open);
    console.flush();
  }
  stream.finish();
  console.flush();
  CHECK(::fcntl(out.read.get(), F_SETFL, O_NONBLOCK) == 0);
  CHECK(read_all(out.read) == "[3] one and half\n[3] two\n[3] three\n");
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
