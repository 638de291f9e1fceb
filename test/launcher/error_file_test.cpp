#include "ddp/base/job_files/error_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "launcher/job/report_files.h"
#include "launcher/workers/error_file.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using ddp::detail::ErrorRecord;
using ddp::detail::to_json;
using ddp::detail::write_error_file;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using nlohmann::json;
using namespace launcher;

TEST_CASE("messages of error files, as torch writes them") {
  CHECK(message_of_error_file(
            R"({"message":{"message":"ValueError: x","extraInfo":{}}})") ==
        "ValueError: x");
  CHECK(message_of_error_file(R"({"message":"plain","timestamp":1})") ==
        "plain");
  for (const char* text : {"",
                           "{",
                           "[]",
                           "null",
                           "{}",
                           R"({"message":1})",
                           R"({"message":{"message":["x"]}})",
                           "\xff\xfe"}) {
    CAPTURE(text);
    CHECK(message_of_error_file(text).empty());
  }
}

TEST_CASE("error files are read from files alone, without waiting") {
  const ddp::test::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  CHECK(read_error_file(file).empty());
  CHECK(read_error_file("").empty());
  CHECK(read_error_file(folder.path()).empty());
  ddp::test::write_file(file, "");
  CHECK(read_error_file(file).empty());
  ddp::test::write_file(file, R"({"message":"plain"})");
  CHECK(read_error_file(file) == R"({"message":"plain"})");
  const std::string link = folder / "link.json";
  REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
  CHECK(read_error_file(link).empty());
  const std::string fifo = folder / "fifo.json";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(read_error_file(fifo).empty());
  const std::string most(1 << 20, 'x');
  ddp::test::write_file(file, most);
  CHECK(read_error_file(file) == most);
  ddp::test::write_file(file, most + "x");
  CHECK(read_error_file(file).empty());
}

TEST_CASE("a record is torchrun's JSON, and never beyond 64 KiB") {
  ErrorRecord record{"ValueError: \"no\"", "line 1\nline 2", 1'700'000'000, {}};
  CHECK(json::parse(to_json(record)) ==
        json::parse(R"({"message":{"message":"ValueError: \"no\"",
          "extraInfo":{"py_callstack":"line 1\nline 2",
                       "timestamp":"1700000000"}}})"));
  record.exit_code = -11;
  CHECK(json::parse(to_json(record))["message"]["errorCode"] == -11);
  record.message = "a\xff\xe2\x82 \u20ac\x01";
  CHECK(json::parse(to_json(record))["message"]["message"] ==
        "a\ufffd\ufffd \u20ac\x01");
  for (const char c : {'x', '\x01', '\xff', '"'}) {
    record.message = record.callstack = std::string(1 << 20, c);
    const std::string text = to_json(record);
    CHECK(text.size() <= ddp::detail::kMostErrorFileBytes);
    CHECK(text.size() > ddp::detail::kMostErrorFileBytes / 2);
    CHECK(!message_of_error_file(text).empty());
  }
}

TEST_CASE("an error file is replaced, other kinds of files stay") {
  const TemporaryFolder folder;
  const std::string file = folder / "error.json";
  CHECK(write_error_file(file, "first, and longer") == 0);
  const std::string open = folder / "open";  // a reader has it open
  REQUIRE(::link(file.c_str(), open.c_str()) == 0);
  CHECK(write_error_file(file, "second") == 0);
  CHECK(read_file(file) == "second");
  CHECK(read_file(open) == "first, and longer");
  const std::string link = folder / "link";
  REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
  CHECK(write_error_file(link, "x") == EEXIST);
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(write_error_file(fifo, "x") == EEXIST);
  CHECK(write_error_file(folder.path(), "x") == EEXIST);
  CHECK(write_error_file(folder / "no/such/folder", "x") == ENOENT);
  CHECK(write_error_file("/dev/null", "x") == 0);
  struct stat status {};
  REQUIRE(::stat("/dev/null", &status) == 0);
  CHECK(S_ISCHR(status.st_mode));
  CHECK(read_file(file) == "second");
  CHECK(folder.size() == 4);  // no temporary file
}

TEST_CASE("an error file is handed on with how its worker ended") {
  const auto handed = [](const std::string& text, ExitStatus status) {
    return json::parse(handed_on(text, status).value());
  };
  const std::string torch =
      R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"7",
        "py_callstack":"here"}},"more":[1,2]})";
  json expected = json::parse(torch);
  expected["message"]["errorCode"] = 3;
  CHECK(handed(torch, {.code = 3}) == expected);
  expected["message"]["errorCode"] = -SIGSEGV;
  CHECK(handed(torch, {.signal = SIGSEGV}) == expected);
  const std::string plain = R"({"message":"plain","timestamp":1})";
  CHECK(handed(plain, {.code = 3}) == json::parse(plain));
  for (const char* text : {"", "{", "[]", "null", "{}", R"({"message":1})"}) {
    CHECK(!handed_on(text, {.code = 3}));
  }
}

TEST_CASE("an error file that nests without end is read and handed on") {
  const std::string deep(400'000, '[');
  const std::string close(400'000, ']');
  const std::string text =
      R"({"message":{"message":"m"},"deep":)" + deep + close + "}";
  CHECK(message_of_error_file(text) == "m");
  const std::string handed = handed_on(text, {.code = 3}).value();
  CHECK(message_of_error_file(handed) == "m");
  CHECK(message_of_error_file(deep).empty());
}

TEST_CASE("whatever an error file says, it is read, and handed on as JSON") {
  const std::string good =
      R"({"message":{"message":"E: \u00e4\"x","extraInfo":{"timestamp":"1"}}})";
  std::mt19937 random(11);
  int understood = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string text = good;
    for (int change = 1 + static_cast<int>(random() % 3); change > 0;
         --change) {
      const size_t at = random() % text.size();
      const char byte = random() % 2 == 0 ? static_cast<char>(random() % 256)
                                          : "{}[]\",:\\"[random() % 8];
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
        text += '}';
      } else {
        text[at] = byte;
      }
    }
    CAPTURE(text);
    const std::string message = message_of_error_file(text);
    const auto handed = handed_on(text, {.code = 3});
    REQUIRE(handed.has_value() == !message.empty());
    understood += handed ? 1 : 0;
    if (handed) {
      REQUIRE(message_of_error_file(*handed) == message);
    }
  }
  CHECK(understood > 100);
  CHECK(understood < 4'900);
}

namespace {

/// A failed worker of the second host, and one that ended after it.
AttemptResult failed_attempt() {
  WorkerExit first;
  first.rank = 5;
  first.local_rank = 1;
  first.status.signal = SIGSEGV;
  WorkerExit second;
  second.rank = 4;
  second.status.code = 1;
  second.error = R"({"message":"what followed"})";
  AttemptResult result;
  result.workers.exits = {first, second};
  result.cause = WorkerExited{1, first.status};
  result.time = 1'700'000'000;
  return result;
}

}  // namespace

TEST_CASE("ddprun's own error file: its first worker's error, or its report") {
  AttemptResult result = failed_attempt();
  const auto error = [&] { return json::parse(make_report(result).error); };
  json said = error()["message"];
  CHECK(said["message"] == "rank 5 failed first: killed by SIGSEGV");
  CHECK(said["errorCode"] == -SIGSEGV);
  CHECK(said["extraInfo"]["timestamp"] == "1700000000");
  CHECK_THAT(said["extraInfo"]["py_callstack"].get<std::string>(),
             Contains("rank 4"));
  result.workers.exits[0].error = "{";  // malformed: ignored
  CHECK(error()["message"]["message"] == said["message"]);
  result.workers.exits[0].error = R"({"message":{"message":"MyError: x"}})";
  said = error()["message"];
  CHECK(said["message"] == "MyError: x");
  CHECK(said["errorCode"] == -SIGSEGV);
  result.cause = StartFailed{127, "program x does not exist"};
  said = error()["message"];
  CHECK(said["message"] == "program x does not exist");
  CHECK(said["errorCode"] == 127);
  result.cause = JobClosed{0};
  CHECK(make_report(result).error.empty());
  result.cause = {};
  CHECK(make_report(result).error.empty());
}

TEST_CASE("the last attempt's failure goes into the error file") {
  const TemporaryFolder folder;
  const std::string file = folder / "error.json";
  EventLoop loop;
  DroppedOutput losses;
  ReportFiles files({.error = file, .json = ""}, {}, loop, losses);
  const Report failure = make_report(failed_attempt());
  files.add(failure);
  CHECK(folder.size() == 0);
  SECTION("the job has failed") {
    files.finish();
    files.thread().drain();
    CHECK(read_file(file) == failure.error);
  }
  SECTION("a restart went well") {
    files.add(Report{});
    files.finish();
    files.thread().drain();
    CHECK(folder.size() == 0);
  }
  SECTION("the file cannot be written") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    files.finish();
    files.thread().drain();
    CHECK_THAT(losses.summary(),
               Contains(" bytes of TORCHELASTIC_ERROR_FILE=" + file));
  }
}
