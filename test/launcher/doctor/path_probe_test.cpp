#include "launcher/doctor/paths/path_probe.h"

#include <functional>
#include <optional>

#include "launcher/doctor/paths/echo_server.h"
#include "launcher/net/address.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using namespace std::chrono_literals;

namespace {

constexpr int64_t kBytes = 1 << 20;

/// A probe of 127.0.0.1.
class PathProbeRun {
 public:
  PathProbeRun(EventLoop& loop, const std::string& id, int port, Place place)
      : loop_(loop),
        probe_(loop,
               1,
               {.host = {.name = "there", .address = "127.0.0.1"},
                .id = id,
                .port = port},
               kBytes,
               60s,
               [this](const PathFacts& facts) { found_ = facts; }) {
    bound(loop, place);
  }

  PathFacts end() {
    CHECK(!found_);  // not before the loop runs
    run_until([this] { return found_.has_value(); });
    CHECK(found_->to == 1);
    return *found_;
  }
  /// Ends the probe once `is_time` returns true.
  PathFacts end_when(const std::function<bool()>& is_time) {
    run_until(is_time);
    CHECK(!found_);
    probe_.give_up();
    return found_.value_or(PathFacts());
  }

 private:
  void run_until(const std::function<bool()>& is_so) {
    while (!is_so()) {
      loop_.run_once();
    }
  }

  EventLoop& loop_;
  std::optional<PathFacts> found_;
  PathProbe probe_;
};

PathFacts probe(EventLoop& loop,
                const std::string& id,
                int port,
                Place place = Place::current()) {
  return PathProbeRun(loop, id, port, place).end();
}

/// A server that is no doctor's: `answer` returns its answer to each line.
struct ForeignServer {
  ForeignServer(EventLoop& loop,
                const std::function<std::string(const std::string&)>& answer)
      : guests(loop,
               listeners(),
               8,
               kProbeLine,
               {.on_line =
                    [this, answer](LineServer::Id id, const std::string& line) {
                      guests.send(id, answer(line));
                      return true;
                    },
                .on_closed = [](LineServer::Id, int) {}}) {}

  std::vector<Fd> listeners() {
    std::vector<Fd> all;
    all.push_back(listen_at(addresses_of("127.0.0.1", 0).front()));
    port = port_of(own_end(all.front()));
    return all;
  }

  int port = 0;
  LineServer guests;
};

}  // namespace

TEST_CASE("a probe of a path that is well") {
  EventLoop loop;
  const EchoServer server(loop, "me", 8);
  const PathFacts facts = probe(loop, "me", server.port());
  CHECK(facts.fault == PathFault::none);
  CHECK(facts.round_trip_seconds > 0);
  CHECK(facts.bytes_per_second > 0);
}

TEST_CASE("a probe where nobody listens") {
  EventLoop loop;
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = addresses_of("127.0.0.1", 0).front();
  REQUIRE(::bind(socket.get(), any.get(), any.size) == 0);
  const PathFacts facts = probe(loop, "me", port_of(own_end(socket)));
  CHECK(facts.fault == PathFault::refused);
}

TEST_CASE("a probe that somebody else answers") {
  EventLoop loop;
  const EchoServer server(loop, "you", 8);
  CHECK(probe(loop, "me", server.port()).fault == PathFault::stranger);
  const ForeignServer other(
      loop, [](const std::string&) { return "HTTP/1.1 400\n"; });
  CHECK(probe(loop, "me", other.port).fault == PathFault::stranger);
}

TEST_CASE("a probe of a path on which long messages are lost") {
  EventLoop loop;
  int long_lines = 0;
  const ForeignServer other(loop, [&](const std::string& line) {
    const bool is_short = line.size() < 1500;
    long_lines += is_short ? 0 : 1;
    return is_short ? line : "";
  });
  PathProbeRun tried(loop, "me", other.port, Place::current());
  CHECK(tried.end_when([&] { return long_lines > 0; }).fault ==
        PathFault::stalled);
}

TEST_CASE("a probe of a path that is slow has seen some of it") {
  EventLoop loop;
  int long_lines = 0;
  const ForeignServer other(loop, [&](const std::string& line) -> std::string {
    if (line.size() < 1500) {
      return line;
    }
    return ++long_lines < 4 ? "\n" : "";
  });
  PathProbeRun tried(loop, "me", other.port, Place::current());
  // Twelve lines are under way at a time, and each answer releases one more.
  const PathFacts facts = tried.end_when([&] { return long_lines == 12 + 3; });
  CHECK(facts.fault == PathFault::none);
  CHECK(facts.bytes_per_second > 0);
}

TEST_CASE("a probe of a text that is no address") {
  EventLoop loop;
  bound(loop);
  std::optional<PathFacts> found;
  const PathProbe probe(loop,
                        1,
                        {.host = {}, .id = "me"},
                        kBytes,
                        60s,
                        [&](const PathFacts& facts) { found = facts; });
  while (!found) {
    loop.run_once();
  }
  CHECK(found->fault != PathFault::none);
}
