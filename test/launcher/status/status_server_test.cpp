#include "launcher/status/status_server.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <thread>

#include "launcher/status/status_client.h"
#include "launcher/status/status_json.h"
#include "launcher/status/status_socket.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace launcher;
using namespace launcher::test;
using ddp::test::TemporaryFolder;

namespace {

/// A server in a loop of its own, with an answer of some length.
struct ServedJob {
  EventLoop loop;
  TemporaryFolder folder;
  std::string answer;
  StatusServer server;

  explicit ServedJob(size_t padding = 0)
      : answer(answer_of(padding)),
        server(loop, folder.path(), [this] { return answer; }) {
    launcher::test::bound(loop);
  }

  std::string path() const { return folder / "status"; }

  static std::string answer_of(size_t padding) {
    JobStatus status;
    status.job = "night";
    status.phase = "running";
    status.logs = std::string(padding, 'l');
    return status_json(status);
  }

  /// What a guest hears, reading as it comes, until its end.
  std::string told_to(const Fd& guest) {
    std::string text;
    std::array<char, 4096> piece;
    while (true) {
      const ssize_t size = ::recv(guest.get(), piece.data(), piece.size(), 0);
      if (size == 0 || (size < 0 && errno != EAGAIN)) {
        return text;
      }
      if (size > 0) {
        text.append(piece.data(), static_cast<size_t>(size));
      } else {
        loop.run_once();
      }
    }
  }

  /// What `ask` returns in a thread of its own.
  StatusAnswers while_served(const std::function<StatusAnswers()>& ask) {
    StatusAnswers answers;
    Pipe done = make_pipe();
    std::thread client([&] {
      answers = ask();
      done.write.reset();
    });
    bool is_done = false;
    const auto watch =
        loop.watch(done.read.get(), EPOLLIN, [&] { is_done = true; });
    while (!is_done) {
      loop.run_once();
    }
    loop.unwatch(watch);
    client.join();
    return answers;
  }
};

void send_to(const Fd& guest, const std::string& text) {
  CHECK(::send(guest.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(text.size()));
}

}  // namespace

TEST_CASE("status socket: who connects is told, and sees the end") {
  const size_t padding = GENERATE(0, 500'000);  // in one piece, in many
  ServedJob job(padding);
  const Fd first = connect_to_path(job.path());
  const Fd second = connect_to_path(job.path());
  CHECK(job.told_to(first) == job.answer);
  CHECK(job.told_to(second) == job.answer);
  CHECK(parse_status(job.answer)->job == "night");
  CHECK(peer_of(first) == ::getpid());
}

TEST_CASE("status socket: its owner's alone, and gone with the job") {
  const TemporaryFolder folder;
  const std::string path = folder / "status";
  EventLoop loop;
  {
    const StatusServer server(
        loop, folder.path(), [] { return std::string(); });
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    CHECK(S_ISSOCK(status.st_mode));
    CHECK((status.st_mode & 0777) == 0600);
    const auto found = find_status_sockets({});
    // Not in a folder with a job's name.
    CHECK(std::count(found.begin(), found.end(), path) == 0);
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("status socket: in a folder with a longer name than a socket's") {
  const TemporaryFolder folder;
  std::string deep = folder.path();
  for (int level = 0; level < 4; ++level) {
    deep += "/" + std::string(60, 'd');
    REQUIRE(::mkdir(deep.c_str(), 0700) == 0);
  }
  EventLoop loop;
  launcher::test::bound(loop);
  const StatusServer server(loop, deep, [] { return std::string("told\n"); });
  REQUIRE(::access((deep + "/status").c_str(), F_OK) == 0);
  const Fd guest = connect_to_path(deep + "/status");
  REQUIRE(guest);
  loop.run_once();
  std::array<char, 16> piece{};
  CHECK(::recv(guest.get(), piece.data(), piece.size(), 0) == 5);
}

TEST_CASE("status socket: without a folder there is none, and no error") {
  EventLoop loop;
  const StatusServer none(loop, "", [] { return std::string(); });
  const StatusServer missing(loop, "/nowhere", [] { return std::string(); });
}

TEST_CASE("status socket: guests that do not read give way to those that do") {
  ServedJob job(900'000);  // more than the kernel keeps
  std::vector<Fd> guests;
  for (int guest = 0; guest < 30; ++guest) {
    guests.push_back(connect_to_path(job.path()));
    REQUIRE(guests.back());
    job.loop.run_once();
  }
  CHECK(job.told_to(connect_to_path(job.path())) == job.answer);
  const std::string begun = job.told_to(guests.front());
  CHECK(!begun.empty());
  CHECK(begun.size() < job.answer.size());  // its place was taken
  CHECK(job.told_to(guests.back()) == job.answer);
}

TEST_CASE("status socket: guests that write or leave disturb nobody") {
  ServedJob job;
  const Fd writes = connect_to_path(job.path());
  send_to(writes, "status, please\n\n\x01\xff\n");
  const Fd floods = connect_to_path(job.path());
  send_to(floods, std::string(100'000, 'x'));
  connect_to_path(job.path()).reset();
  CHECK(job.told_to(connect_to_path(job.path())) == job.answer);
  CHECK(job.told_to(writes) == job.answer);
  // Until its end, which is an error where not all was read.
  job.told_to(floods);
}

TEST_CASE("status sockets that nobody serves: silent, stale or gone") {
  const TemporaryFolder folder;
  const Fd silent = listen_at_path(folder / "silent");
  listen_at_path(folder / "stale").reset();
  const StatusAnswers answers =
      ask_jobs({folder / "silent", folder / "stale", folder / "gone"},
               "",
               std::chrono::milliseconds(50));
  CHECK(answers.jobs.empty());
  REQUIRE(answers.silent.size() == 1);
  CHECK(answers.silent[0].socket == (folder / "silent"));
  CHECK(answers.silent[0].pid == ::getpid());
  CHECK(answers.stale == std::vector<std::string>{folder / "stale"});
}

TEST_CASE("status sockets: who answers nonsense is silent") {
  ServedJob job;
  job.answer = GENERATE(std::string("{}\n"), std::string("no JSON\n"));
  const StatusAnswers answers =
      job.while_served([&] { return ask_jobs({job.path()}); });
  CHECK(answers.jobs.empty());
  CHECK(answers.silent.size() == 1);
}

TEST_CASE("status sockets: one job is told of while another one is silent") {
  ServedJob job;
  const TemporaryFolder folder;
  const Fd silent = listen_at_path(folder / "silent");
  const StatusAnswers answers = job.while_served([&] {
    // Longer than the loop would wait.
    return ask_jobs(
        {folder / "silent", job.path()}, "night", std::chrono::hours(1));
  });
  REQUIRE(answers.jobs.size() == 1);
  CHECK(answers.jobs[0].job == "night");
  CHECK(answers.silent.size() == 1);
}
