#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "launcher/machine/pseudo_terminal.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using namespace std::chrono_literals;

namespace {

/// Returns line `index` of the output of spam_output on a rank.
std::string spam_line(int rank, int index) {
  return std::to_string(index) +
         std::string(index % 61, static_cast<char>('a' + rank % 26));
}

void check_spam(const Result& result, int ranks, int lines) {
  size_t bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    const auto found = result.lines_of(prefix);
    REQUIRE(found.size() == static_cast<size_t>(lines));
    int wrong = 0;
    for (int index = 0; index < lines; ++index) {
      wrong += found[index] == spam_line(rank, index) ? 0 : 1;
      bytes += prefix.size() + found[index].size() + 1;
    }
    CHECK(wrong == 0);
  }
  CHECK(result.out.size() == bytes);
}

}  // namespace

TEST_CASE("lines of several ranks are never torn, lost or out of order") {
  // With a sanitizer on a busy machine this many lines take seconds.
  const auto result =
      run_ddprun({"--nproc-per-node=4", resource("spam_output"), "100000", "0"},
                 {},
                 "",
                 Bound(100s));
  CHECK(result.code() == 0);
  check_spam(result, 4, 100000);
}

TEST_CASE("the output of a worker that dies is not lost") {
  const auto result = run_ddprun({resource("spam_output"), "5000", "7"});
  CHECK(result.code() == 7);
  check_spam(result, 1, 5000);
}

TEST_CASE("a reader that sleeps stops no death from being noticed") {
  // stdout is not read, so rank 0 and ddprun block on it.
  Ddprun job({"--nproc-per-node=2",
              "sh",
              "-c",
              "if [ $RANK = 0 ]; then exec " +
                  in_shell(resource("spam_output")) +
                  " 1000000 0; else exit 9; fi"});
  job.await_err("rank 1 failed (exit code 9)");
  const auto result = job.finish();  // reads the output
  CHECK(result.code() == 9);
  CHECK(!result.left_something);
  const auto lines = result.lines_of("[0] ");
  for (size_t index = 0; index + 1 < lines.size(); ++index) {
    REQUIRE(lines[index] == spam_line(0, static_cast<int>(index)));
  }
}

TEST_CASE("a reader that sleeps stops no signal") {
  Ddprun job({resource("spam_output"), "1000000", "0"});
  job.await_out("[0] 0\n");
  job.signal(SIGTERM);
  job.await_err("SIGTERM came");
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
}

TEST_CASE("a reader that goes away (| head) does not end the job") {
  Ddprun job({"--nproc-per-node=2", resource("spam_output"), "100000", "0"});
  job.await_out("[0] 0\n");
  job.close_out();
  job.await_err("done", 2);
  CHECK(job.finish().code() == 0);
}

TEST_CASE("a step without a newline is shown at once, and logged as it is") {
  const ddp::test::TemporaryFolder folder;
  Ddprun::Arguments arguments{"--log-dir=" + folder.path()};
  const std::string option = GENERATE("", "--tee=3");
  if (!option.empty()) {
    arguments.push_back(option);
  }
  arguments.insert(
      arguments.end(),
      {"sh", "-c", "printf 'step 1\\r'; read line; printf 'step 2\\n'"});
  Ddprun job(arguments);
  job.await_out("[0] step 1");  // the worker goes on when its input ends
  const auto result = job.finish();
  CHECK(result.out == "[0] step 1\r[0] step 2\n");
  if (option == "--tee=3") {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder.path())) {
      if (entry.path().filename() == "stdout.log") {
        CHECK(ddp::test::read_file(entry.path()) == "step 1\rstep 2\n");
      }
    }
  }
}

namespace {

constexpr size_t kUnread = 200'000;
const std::string kWriteUnread =
    "head -c " + std::to_string(kUnread - 5) + " /dev/zero | tr '\\0' x; echo";

}  // namespace

TEST_CASE("the bytes that nobody has read when a signal came are counted") {
  const launcher::Pipe pipe = launcher::make_pipe();
  const auto room = static_cast<size_t>(::fcntl(pipe.read.get(), F_GETPIPE_SZ));
  Ddprun job({"sh", "-c", kWriteUnread + "; echo written >&2; exec sleep 600"},
             {},
             "",
             {},
             [&pipe] { ::dup2(pipe.write.get(), STDOUT_FILENO); });
  job.await_err("written\n");
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err,
             Contains("output was lost, so this is no success: " +
                      std::to_string(kUnread - room) + " bytes of stdout\n"));
  CHECK(!result.left_something);
}

TEST_CASE("a terminal that nobody reads stops no death and no signal") {
  const auto terminal = launcher::make_pseudo_terminal({});
  Ddprun job({"--nproc-per-node=2",
              "sh",
              "-c",
              "[ $RANK = 1 ] || { read line; exit 9; }; " + kWriteUnread +
                  "; echo written >&2; exec sleep 600"},
             {},
             "",
             {},
             [&terminal] { ::dup2(terminal.write.get(), STDOUT_FILENO); });
  job.await_err("written\n");
  SECTION("a death") {
    job.close_input();
    job.await_err("rank 0 failed (exit code 9)");
    job.signal(SIGTERM);  // else the job waits for the reader
    CHECK(job.finish().code() == 9);
  }
  SECTION("a signal") {
    job.signal(SIGTERM);
    job.await_err("SIGTERM came");
    const auto result = job.finish();
    CHECK(result.code() == 128 + SIGTERM);
    CHECK(!result.left_something);
    CHECK(!job.left_files());
  }
}

TEST_CASE("stdout and stderr stay apart") {
  const auto result =
      run_ddprun({"sh", "-c", "echo out; echo err >&2; printf 'no newline'"});
  CHECK(result.out == "[0] out\n[0] no newline\n");
  CHECK(result.err == "[0] err\n");
}

TEST_CASE("the prefix of lines is the user's choice") {
  std::string pattern = "[${role_name}${rank}]:";
  const auto run = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--role=r", "sh", "-c", "echo a; echo b"});
    return run_ddprun(options,
                      {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", pattern}})
        .out;
  };
  const ddp::test::TemporaryFolder folder;
  CHECK(run({}) == "[r0]:a\n[r0]:b\n");
  CHECK(run({"--redirect=3", "--tee=3", "--log-dir=" + folder.path()}) ==
        "[r0]:a\n[r0]:b\n");
  pattern = "<${role_name}.$local_rank ${rank} ${x}$$>";
  CHECK(run({}) == "<r.0 0 ${x}$>a\n<r.0 0 ${x}$>b\n");
}

TEST_CASE("very long lines arrive") {
  const auto result =
      run_ddprun({"sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo"});
  CHECK(result.code() == 0);
  CHECK(std::count(result.out.begin(), result.out.end(), 'x') == 3000000);
}

TEST_CASE("output that a full device does not take is no success") {
  const auto run = [](const std::string& job) {
    return run_ddprun(
        {"sh", "-c", in_shell(ddprun_path()) + " " + job + " >/dev/full"});
  };
  const auto result = run("sh -c 'echo a; echo b >&2'");
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("[0] ddprun: stdout cannot be written (No space left on "
                      "device); the job goes on") &&
                 Contains("[0] [0] b\n") &&
                 Contains("[0] ddprun: output was lost, so this is no success: "
                          "6 bytes of stdout\n"));
  CHECK(run("sh -c 'echo a; exit 7'").code() == 7);
  CHECK(run("true").code() == 0);
  for (const char* option : {"--help", "--version", "--dry-run true"}) {
    const auto information = run(option);
    CHECK(information.code() == 1);
    CHECK_THAT(information.err, Contains("ddprun: stdout cannot be written"));
  }
}

TEST_CASE("filtered logs have the lines of all ranks that hold a text") {
  const ddp::test::TemporaryFolder folder;
  const auto result = run_ddprun(
      {"--nproc-per-node=3",
       "--tee=0:3,1:3",
       "--log-dir=" + folder.path(),
       "--duplicate-stdout-filters=loss,a,,b",
       "--duplicate-stderr-filters=none of these",
       "sh",
       "-c",
       "echo loss of $RANK; echo other; echo xa,by >&2; printf 'a,b'"});
  CHECK(result.code() == 0);
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    path = entry.path() / "attempt_0";
  }
  const auto lines_of = [&path](const std::string& name) {
    std::ifstream stream(path + "/" + name);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  CHECK(lines_of("filtered_stdout.log") ==
        std::vector<std::string>{
            "[0] a,b", "[0] loss of 0", "[1] a,b", "[1] loss of 1"});
  CHECK(std::filesystem::exists(path + "/filtered_stderr.log"));
  CHECK(lines_of("filtered_stderr.log").empty());
}

TEST_CASE("logs that may not grow: the job goes on, and is no success") {
  const ddp::test::TemporaryFolder folder;
  // One block: 512 bytes or 1 KiB.
  const auto result = run_ddprun(
      {"sh",
       "-c",
       "ulimit -f 1; exec " + in_shell(ddprun_path()) +
           " -t 1 --log-dir=" + folder.path() + " --nproc-per-node=2 " +
           in_shell(resource("spam_output")) + " 1000 0"});
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("stdout.log cannot be written (File too large)") &&
                 Contains("output was lost, so this is no success:"));
  CHECK(!result.left_something);
}

namespace {

/// A terminal, of which a thread reads all that is written.
class Terminal {
 public:
  explicit Terminal(const winsize& size = {})
      : ends_(launcher::make_pseudo_terminal(size)) {
    reader_ = std::thread([this] {
      std::array<char, 4096> piece;
      ssize_t bytes = 0;
      while ((bytes = ::read(ends_.read.get(), piece.data(), piece.size())) >
             0) {
        const std::lock_guard lock(mutex_);
        text_.append(piece.data(), static_cast<size_t>(bytes));
        changed_.notify_all();
      }
    });
  }
  ~Terminal() { text(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int fd() const { return ends_.write.get(); }
  void await(const std::string& text) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(
        lock, 60s, [&] { return text_.find(text) != std::string::npos; }));
  }
  /// Returns all that was written, once no process has the terminal.
  const std::string& text() {
    ends_.write.reset();
    if (reader_.joinable()) {
      reader_.join();
    }
    return text_;
  }

 private:
  launcher::Pipe ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::thread reader_;
};

}  // namespace

TEST_CASE("workers whose lines go to a terminal see one, which controls none") {
  Terminal terminal;
  const auto result =
      run_ddprun({"--nproc-per-node=2",
                  "sh",
                  "-c",
                  "test -t 1 && ! test -t 2 && stty size <&1; (: </dev/tty) "
                  "2>/dev/null || echo no control; printf last"},
                 {{"LC_ALL", "C"}},
                 "",
                 {},
                 [&terminal] { ::dup2(terminal.fd(), STDOUT_FILENO); });
  CHECK(result.code() == 0);
  const Result shown{.out = terminal.text()};
  CHECK(shown.lines_of("[1] ") ==
        std::vector<std::string>{"24 80", "no control", "last"});
  CHECK(shown.lines_of("[0] ") == shown.lines_of("[1] "));
}

TEST_CASE("on a terminal a program that throws has shown all it wrote") {
  Terminal terminal;
  run_ddprun({resource("print_and_throw")}, {}, "", {}, [&terminal] {
    ::dup2(terminal.fd(), 1);
  });
  CHECK(terminal.text() == "[0] epoch 1\n[0] epoch 2\n[0] epoch 3\n");
}

TEST_CASE("a reader that sleeps is no hang of a worker") {
  // Rank 0 blocks because its output is not read; rank 1 writes.
  Ddprun job({"--nproc-per-node=2",
              "--hang-timeout=1",
              "sh",
              "-c",
              "if [ $RANK = 1 ]; then sleep 4; echo said >&2; exit; fi; "
              "for i in 1 2 3; do echo $i > $DDPRUN_JOB_DIR/progress_$RANK; "
              "sleep 0.2; "
              "done; head -c 3000000 /dev/zero | tr '\\0' x"});
  job.await_err("said");
  const auto result = job.finish();  // reads the output
  CHECK(result.code() == 0);
  CHECK(result.err == "[1] said\n");
  CHECK(std::count(result.out.begin(), result.out.end(), 'x') == 3000000);
}

TEST_CASE("a redirected stream is a file, whose end the report has") {
  const ddp::test::TemporaryFolder folder;
  const auto result = run_ddprun({"--redirects=3",
                                  "--log-dir=" + folder.path(),
                                  "sh",
                                  "-c",
                                  "test -f /dev/fd/1 || exit 8; "
                                  "yes line | head -n 30000 >&2; "
                                  "echo why >&2; exit 7"});
  CHECK(result.code() == 7);
  CHECK_THAT(result.err, Contains("    | line\n    | why\n"));
}

TEST_CASE("no line is lost in a terminal, however its worker ends") {
  Terminal terminal;
  const auto result =
      run_ddprun({"--nproc-per-node=2", resource("spam_output"), "5000", "0"},
                 {},
                 "",
                 {},
                 [&terminal] { ::dup2(terminal.fd(), 1); });
  CHECK(result.code() == 0);
  check_spam({.out = terminal.text()}, 2, 5000);
}

TEST_CASE("a terminal has the size of ddprun's, less the prefix, also later") {
  Terminal terminal(
      {.ws_row = 40, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0});
  Ddprun job({"sh",
              "-c",
              "trap 'stty size <&1; exit' WINCH; stty size <&1; "
              "while :; do sleep 0.01; done"},
             {},
             "",
             {},
             [&terminal] { ::dup2(terminal.fd(), 1); });
  terminal.await("[0] 40 116\n");
  const winsize size{50, 100, 0, 0};
  REQUIRE(::ioctl(terminal.fd(), TIOCSWINSZ, &size) == 0);
  job.signal(SIGWINCH);
  terminal.await("[0] 50 96\n");
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK(result.err.empty());
}

TEST_CASE("workers may have ddprun's own streams") {
  const auto result = run_ddprun(
      {"--output=inherit", "sh", "-c", "read line; echo $line; echo err >&2"},
      {},
      "asked\n");
  CHECK(result.code() == 0);
  CHECK(result.out == "asked\n");
  CHECK(result.err == "err\n");
}

TEST_CASE("what is inherited is neither seen nor needed for a report") {
  const auto result = run_ddprun({"--output=inherit",
                                  "--redirects=1",
                                  "sh",
                                  "-c",
                                  "echo to a file; echo err >&2; exit 3"});
  CHECK(result.code() == 3);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("err\n") && Contains("exit code 3"));
}

TEST_CASE("a job behind a shell's & leaves what is typed to the shell") {
  const auto terminal = launcher::make_pseudo_terminal({});
  const std::string typed = "for the shell\n\x04";
  REQUIRE(::write(terminal.read.get(), typed.data(), typed.size()) > 0);
  const auto result = run_ddprun({"cat"}, {}, "", {}, [&terminal] {
    ::setsid();
    ::dup2(terminal.write.get(), 0);
    ::ioctl(0, TIOCSCTTY, 0);
    const pid_t in_front = ::fork();
    if (in_front == 0) {
      ::setpgid(0, 0);
      ::signal(SIGTTOU, SIG_IGN);
      ::tcsetpgrp(0, ::getpgrp());
      ::_exit(0);
    }
    ::waitpid(in_front, nullptr, 0);
  });
  CHECK(result.code() == 0);
  CHECK(result.out.empty());
}

TEST_CASE("local rank 0 alone reads") {
  const std::string script = "read line && echo has $line || echo has none";
  const auto result =
      run_ddprun({"--nproc-per-node=2", "sh", "-c", script}, {}, "a line\n");
  CHECK(result.lines_of("[0] ") == std::vector<std::string>{"has a line"});
  CHECK(result.lines_of("[1] ") == std::vector<std::string>{"has none"});
}
