#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <list>
#include <stdexcept>
#include <thread>

#include "launcher/net/address.h"
#include "launcher/net/port.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;
using Arguments = Ddprun::Arguments;

// Several hosts that meet: each is a ddprun on this machine, over loopback.
namespace {

/// A free port, and the endpoint at which hosts find it.
class MeetingPlace {
 public:
  explicit MeetingPlace(std::string host = "127.0.0.1")
      : host_(std::move(host)) {}

  int port() const { return port_.port(); }
  std::string text() const { return host_ + ":" + std::to_string(port()); }
  Arguments arguments(const std::string& hosts,
                      const Arguments& more,
                      const std::string& settings = "") const {
    Arguments all{"--nnodes=" + hosts,
                  "--rdzv-backend=c10d",
                  "--rdzv-id=job",
                  "--rdzv-endpoint=" + text(),
                  "--rdzv-conf=last_call_timeout=0.2" + settings};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  std::string host_;
  launcher::PortReservation port_{0};
};

/// Forwards connections to a port of this machine.
class Proxy {
 public:
  explicit Proxy(int port)
      : to_(launcher::addresses_of("127.0.0.1", port).at(0)),
        listener_(
            launcher::listen_at(launcher::addresses_of("127.0.0.1", 0).at(0))) {
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    is_over_ = true;
    thread_.join();
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string text() const {
    return "127.0.0.1:" +
           std::to_string(launcher::port_of(launcher::own_end(listener_)));
  }
  /// Ends all open connections and accepts new ones.
  ///
  /// @param with_reset resets connections, as a network failure does; else
  ///     closes them, as their ends do
  void cut(bool with_reset) { cut_ = with_reset ? kReset : kClose; }
  /// Blocks until `count` connections have carried an answer.
  void await_answers(int count) const {
    for (int beat = 0; answered_ < count; ++beat) {
      if (beat == 4'000) {
        throw std::runtime_error("nothing came back through the proxy");
      }
      ::poll(nullptr, 0, 5);
    }
  }

 private:
  enum Cut { kNothing, kReset, kClose };
  struct Way {
    launcher::Fd ends[2];  // guest's end, port's end
    bool was_answered = false;
  };

  void run() {
    while (!is_over_) {
      const int cut = cut_.exchange(kNothing);
      for (Way& way : cut == kNothing ? none_ : ways_) {
        end(way, cut == kReset);
      }
      if (cut != kNothing) {
        ways_.clear();
      }
      step();
    }
  }
  void step() {
    std::vector<pollfd> any{{listener_.get(), POLLIN, 0}};
    for (const Way& way : ways_) {
      any.push_back({way.ends[0].get(), POLLIN, 0});
      any.push_back({way.ends[1].get(), POLLIN, 0});
    }
    ::poll(any.data(), any.size(), 5);
    size_t at = 1;
    for (auto next = ways_.begin(); next != ways_.end(); at += 2) {
      const auto way = next++;
      if ((any[at].revents != 0 && !hand_on(*way, 0)) ||
          (any[at + 1].revents != 0 && !hand_on(*way, 1))) {
        ways_.erase(way);
      }
    }
    if (any[0].revents != 0) {
      accept();
    }
  }
  void accept() {
    Way way;
    way.ends[0] = launcher::accept_from(listener_);
    way.ends[1] = launcher::begin_to_connect(to_);
    pollfd opens{way.ends[1].get(), POLLOUT, 0};
    if (way.ends[0] && way.ends[1] && ::poll(&opens, 1, 10'000) == 1) {
      ways_.push_back(std::move(way));
    }
  }
  bool hand_on(Way& way, int from) {
    char bytes[4096];
    const ssize_t size =
        ::recv(way.ends[from].get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size <= 0) {
      return false;
    }
    if (from == 1 && !way.was_answered) {
      way.was_answered = true;
      ++answered_;
    }
    return ::send(way.ends[1 - from].get(),
                  bytes,
                  static_cast<size_t>(size),
                  MSG_NOSIGNAL) == size;
  }
  static void end(Way& way, bool with_reset) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    for (launcher::Fd& end : way.ends) {
      if (with_reset) {
        ::setsockopt(
            end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      }
      end.reset();
    }
  }

  launcher::SocketAddress to_;
  launcher::Fd listener_;
  std::list<Way> ways_;
  std::list<Way> none_;
  std::atomic<int> cut_{kNothing};
  std::atomic<int> answered_{0};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

const std::map<std::string, std::string> kToken{{"DDPRUN_TOKEN", "secret"}};

/// Returns a worker that prints the size of its world and waits for a signal.
Arguments waiting_worker() {
  return {"sh",
          "-c",
          "echo in a world of $WORLD_SIZE; exec " +
              in_shell(resource("on_signal")) + " exit"};
}

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST_CASE("hosts with different numbers of workers form one world") {
  const MeetingPlace place;
  const Arguments show{resource("print_env"),
                       "RANK",
                       "WORLD_SIZE",
                       "GROUP_WORLD_SIZE",
                       "LOCAL_WORLD_SIZE",
                       "ROLE_WORLD_SIZE",
                       "MASTER_ADDR",
                       "MASTER_PORT"};
  const auto start = [&](const std::string& workers, const std::string& role) {
    return std::make_unique<Ddprun>(
        place.arguments(
            "2",
            Arguments{"--nproc-per-node=" + workers, "--role=" + role} + show),
        kToken);
  };
  const auto small = start("1", "small");
  const auto large = start("2", "large");
  const Result results[] = {small->finish(), large->finish()};
  std::vector<std::string> ports;
  std::vector<int> ranks;
  for (const Result& result : results) {
    const bool is_small = &result == results;
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK(result.err.empty());
    CHECK(!result.left_something);
    for (int rank = 0; rank < 3; ++rank) {
      const auto lines = result.lines_of("[" + std::to_string(rank) + "] ");
      if (lines.empty()) {
        continue;
      }
      const std::string workers = is_small ? "1" : "2";
      REQUIRE(lines.size() == 7);
      CHECK(lines[0] == "RANK=" + std::to_string(rank));
      CHECK(lines[1] == "WORLD_SIZE=3");
      CHECK(lines[2] == "GROUP_WORLD_SIZE=2");
      CHECK(lines[3] == "LOCAL_WORLD_SIZE=" + workers);
      CHECK(lines[4] == "ROLE_WORLD_SIZE=" + workers);
      CHECK(lines[5] == "MASTER_ADDR=127.0.0.1");
      ranks.push_back(rank);
      ports.push_back(lines[6]);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  CHECK(ranks == std::vector<int>{0, 1, 2});
  CHECK(std::count(ports.begin(), ports.end(), ports.front()) == 3);
}

TEST_CASE("hosts meet over IPv6, and by a name") {
  const std::string host = GENERATE("[::1]", "localhost");
  if (!launcher::listen_at(launcher::addresses_of("::1", 0).at(0))) {
    WARN("skipped: there is no IPv6");
    return;
  }
  const MeetingPlace place(host);
  const Arguments program{resource("print_env"), "MASTER_ADDR"};
  Ddprun first(place.arguments("2", program), kToken);
  Ddprun second(place.arguments("2", program), kToken);
  std::string out;
  for (const Result& result : {first.finish(), second.finish()}) {
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    out += result.out;
  }
  CHECK_THAT(out,
             Contains("[0] MASTER_ADDR=" +
                      std::string(host == "[::1]" ? "::1\n" : "")));
}

TEST_CASE("a failure on one host starts the workers of all again") {
  const MeetingPlace place;
  const auto arguments =
      place.arguments("2", {"--max-restarts=1", resource("fail_until"), "1"});
  Ddprun first(arguments, kToken);
  Ddprun second(arguments, kToken);
  // The first worker that fails may end the other one before its first output.
  bool was_first_attempt = false;
  for (const Result& result : {first.finish(), second.finish()}) {
    CAPTURE(result.out, result.err);
    CHECK(result.code() == 0);
    was_first_attempt |= result.out.find("attempt 0") != std::string::npos;
    CHECK_THAT(result.out, Contains("attempt 1"));
    CHECK_THAT(result.err, Contains("restart 1 of 1"));
  }
  CHECK(was_first_attempt);
}

TEST_CASE("the last failure ends the job on all hosts with its code") {
  const MeetingPlace place;
  const auto arguments =
      place.arguments("2", {resource("exit_with"), "7", "1", "oh"});
  Ddprun first(arguments, kToken);
  Ddprun second(arguments, kToken);
  int named = 0;
  for (const Result& result : {first.finish(), second.finish()}) {
    CAPTURE(result.err);
    CHECK(result.code() == 7);
    CHECK(!result.left_something);
    named += result.err.find("rank 1 on host") != std::string::npos &&
                     result.err.find("failed: exit code 7") != std::string::npos
                 ? 1
                 : 0;
  }
  CHECK(named == 1);  // the other host shows its own worker
}

TEST_CASE("a start that fails on one host is told to the others") {
  const MeetingPlace place;
  const TemporaryFolder folder;
  const std::string script = folder.path() + "/script";
  std::ofstream(script) << "#!/no/interpreter\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Ddprun first(place.arguments("2", {"--max-restarts=3", "cat"}), kToken);
  Ddprun second(place.arguments("2", {"--max-restarts=3", script}), kToken);
  const Result failed = second.finish();
  const Result told = first.finish();
  CAPTURE(failed.err, told.err);
  CHECK(failed.code() == told.code());
  CHECK_THAT(told.err, Contains("could not start: ") && Contains(script));
  CHECK(!told.left_something);
}

TEST_CASE("a final exit code ends the job on all hosts, without a restart") {
  const MeetingPlace place;
  const auto arguments =
      place.arguments("2",
                      {"--max-restarts=3",
                       "--final-codes=93",
                       "sh",
                       "-c",
                       "[ $RANK = 1 ] && exit 93; exec sleep 1000"});
  Ddprun first(arguments, kToken);
  Ddprun second(arguments, kToken);
  std::string err;
  for (const Result& result : {first.finish(), second.finish()}) {
    CHECK(result.code() == 93);
    CHECK(!result.left_something);
    err += result.err;
  }
  CHECK_THAT(err,
             Contains("no restart follows this exit code (--final-codes)") &&
                 Contains("rank 1 on host") &&
                 !Contains("starting all workers again"));
}

TEST_CASE("an elastic job takes in a host that comes and lives without it") {
  const MeetingPlace place;
  const auto arguments =
      place.arguments("1:2", waiting_worker(), ",last_call_timeout=0");
  Ddprun stays(arguments, kToken);
  stays.await_out("in a world of 1");
  stays.await_out("ready");
  {
    Ddprun comes(arguments, kToken);
    comes.await_out("in a world of 2");
    comes.await_out("ready");
    stays.await_out("in a world of 2");
    stays.await_out("ready", 2);
    comes.signal(SIGTERM);
    CHECK(comes.finish().code() == 128 + SIGTERM);
  }
  stays.await_out("in a world of 1", 2);
  stays.await_out("ready", 3);
  stays.signal(SIGTERM);
  const Result result = stays.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err, Contains("joined") && Contains("left"));
  CHECK(!result.left_something);
}

TEST_CASE("one host of an elastic job starts when no other one has come") {
  const MeetingPlace place;
  const auto run = [&](const Arguments& program) {
    return run_ddprun(
        place.arguments("1:2", Arguments{"--nproc-per-node=2"} + program),
        kToken);
  };
  const Result good = run({resource("print_env"), "WORLD_SIZE"});
  CAPTURE(good.err);
  CHECK(good.code() == 0);
  CHECK(good.lines_of("[0] ") == std::vector<std::string>{"WORLD_SIZE=2"});
  CHECK(good.lines_of("[1] ") == std::vector<std::string>{"WORLD_SIZE=2"});
  const Result bad = run({resource("exit_with"), "7", "1", "oh"});
  CAPTURE(bad.err);
  CHECK(bad.code() == 7);
  CHECK_THAT(bad.err, Contains("rank 1 failed first: exit code 7"));
  CHECK(!bad.left_something);
}

TEST_CASE("hosts of a fixed number end when one leaves, and name it") {
  const MeetingPlace place;
  Ddprun meets(place.arguments("2", waiting_worker(), ",is_host=1"), kToken);
  Ddprun other(place.arguments("2", waiting_worker(), ",is_host=0"), kToken);
  meets.await_out("ready");
  other.await_out("ready");
  SECTION("an ordinary one") {
    other.signal(SIGTERM);
    CHECK(other.finish().code() == 128 + SIGTERM);
    const Result result = meets.finish();
    CHECK(result.code() == 1);
    CHECK_THAT(result.err, Contains("has left and the job cannot do without"));
  }
  SECTION("the one where they meet") {
    meets.signal(SIGTERM);
    const Result result = other.finish();
    CHECK(result.code() == 1);
    CHECK_THAT(result.err,
               Contains("at which the hosts of the job meet, has left"));
    CHECK(meets.finish().code() == 128 + SIGTERM);
  }
}

TEST_CASE("a host that does not belong to the job is refused") {
  const MeetingPlace place;
  Ddprun meets(place.arguments("2", waiting_worker(), ",is_host=1"), kToken);
  auto arguments = place.arguments("2", waiting_worker(), ",is_host=0");
  auto variables = kToken;
  std::string expected;
  SECTION("another job") {
    arguments.insert(arguments.begin() + 5, "--rdzv-id=another");
    expected =
        "expected job job, which this endpoint serves, but got job "
        "another";
  }
  SECTION("another secret") {
    variables["DDPRUN_TOKEN"] = "guess";
    expected = "expected the token of the job";
  }
  const Result result = run_ddprun(arguments, variables);
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("refused at --rdzv-endpoint " + place.text()) &&
                 Contains(expected));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  meets.signal(SIGTERM);
  CHECK(meets.finish().code() == 128 + SIGTERM);
}

TEST_CASE("nobody at the endpoint: an error in the time that was given") {
  const MeetingPlace place;
  const Result result = run_ddprun(
      place.arguments("2", {"true"}, ",is_host=0,join_timeout=0.2"), kToken);
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("no ddprun answers at --rdzv-endpoint " + place.text()));
}

TEST_CASE("too few hosts: an error in the time that was given") {
  const MeetingPlace place;
  const Result result =
      run_ddprun(place.arguments("2", {"true"}, ",join_timeout=0.2"), {});
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("expected at least 2 hosts, but got 1") &&
                 Contains("DDPRUN_TOKEN"));
}

TEST_CASE("another program at the endpoint's port: an error at once") {
  const auto addresses = launcher::addresses_of("127.0.0.1", 0);
  const launcher::Fd listener = launcher::listen_at(addresses.at(0));
  REQUIRE(listener);
  sockaddr_in bound{};
  socklen_t size = sizeof(bound);
  REQUIRE(::getsockname(
              listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  const std::string endpoint =
      "127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
  Ddprun host({"--nnodes=2",
               "--rdzv-backend=c10d",
               "--rdzv-endpoint=" + endpoint,
               "true"},
              kToken);
  pollfd comes{.fd = listener.get(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&comes, 1, 20'000) == 1);
  const launcher::Fd stranger = launcher::accept_from(listener);
  REQUIRE(stranger);
  const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
  REQUIRE(::send(stranger.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  const Result result = host.finish();
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("--rdzv-endpoint " + endpoint) &&
                 Contains("another program uses the port"));
}

TEST_CASE(
    "one of three hosts is killed: the others go on, a spare takes over") {
  const MeetingPlace place;
  const auto arguments = [&](const std::string& is_host) {
    return place.arguments("2:3", waiting_worker(), ",is_host=" + is_host);
  };
  Ddprun first(arguments("1"), kToken);
  Ddprun second(arguments("0"), kToken);
  Ddprun third(arguments("0"), kToken);
  Ddprun* all[] = {&first, &second, &third};
  for (Ddprun* host : all) {
    host->await_out("in a world of 3");
    host->await_out("ready");
  }
  Ddprun spare(arguments("0"), kToken);
  third.signal(SIGKILL);
  CHECK(third.finish().code() == 128 + SIGKILL);
  for (Ddprun* host : {&first, &second}) {
    host->await_out("ready", 2);
  }
  spare.await_out("in a world of 3");
  for (Ddprun* host : {&first, &second, &spare}) {
    host->signal(SIGTERM);
  }
  for (Ddprun* host : {&first, &second, &spare}) {
    const Result result = host->finish();
    CHECK(result.code() != 0);
    CHECK(!result.left_something);
  }
}

TEST_CASE("two jobs in a row with one id: each host runs both") {
  const MeetingPlace place;
  const auto start = [&](const std::string& is_host, const std::string& line) {
    return std::make_unique<Ddprun>(
        place.arguments("2", {"sh", "-c", line}, ",is_host=" + is_host),
        kToken);
  };
  // The output is larger than a pipe and is not read, so the first job's ddprun
  // at the endpoint still runs when the other host begins with the second job.
  const auto first = start(
      "1", "head -c 500000 /dev/zero | tr '\\0' x | fold -w 100; echo end");
  const auto other_first = start("0", "echo first");
  const Result other_end = other_first->finish();
  CAPTURE(other_end.err);
  REQUIRE(other_end.code() == 0);
  const auto other_second = start("0", "echo second");
  other_second->await_err("waiting at --rdzv-endpoint");
  CHECK(first->finish().code() == 0);
  const auto second = start("1", "echo second");
  for (const auto& host : {&second, &other_second}) {
    const Result result = (*host)->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK_THAT(result.out, Contains("second"));
  }
}

TEST_CASE("a connection that is cut and made anew ends no training") {
  const bool with_reset = GENERATE(true, false);
  const MeetingPlace place;
  const ddp::test::TemporaryFolder folder;
  const auto arguments = [&](const std::string& is_host) {
    return place.arguments(
        "2",
        {"--max-restarts=0",
         "sh",
         "-c",
         "echo ready; while [ ! -e $0 ]; do sleep 0.02; done",
         folder / "end"},
        ",is_host=" + is_host);
  };
  Proxy proxy(place.port());
  Arguments through_proxy = arguments("0");
  through_proxy[3] = "--rdzv-endpoint=" + proxy.text();
  Ddprun meets(arguments("1"), kToken);
  Ddprun other(through_proxy, kToken);
  for (Ddprun* host : {&meets, &other}) {
    host->await_out("ready");
  }
  for (const int answers : {2, 3, 4}) {
    proxy.cut(with_reset);
    proxy.await_answers(answers);
  }
  std::ofstream(folder / "end") << "now";
  for (Ddprun* host : {&meets, &other}) {
    const Result result = host->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK(result.err.empty());
    CHECK(!result.left_something);
  }
}
