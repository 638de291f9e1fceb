#include "launcher/net/line_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include "launcher/net/address.h"
#include "launcher/net/port.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/number_from.h"

using namespace launcher;

// Connections of clients to a line server.
namespace {

/// A coordinator's line server. A client that has sent a line is known; it
/// stays if the line is "hello".
struct GuestServer {
  EventLoop loop;
  std::set<LineServer::Id> known;
  int closed = 0;
  SocketAddress place;
  std::unique_ptr<LineServer> guests;

  explicit GuestServer(size_t most, const std::string& at = "127.0.0.1") {
    test::bound(loop);
    std::vector<Fd> listeners;
    listeners.push_back(listen_at(addresses_of(at, 0).at(0)));
    place = own_end(listeners.front());
    guests = std::make_unique<LineServer>(
        loop,
        std::move(listeners),
        most,
        /*longest_line=*/64,
        LineServer::Handlers{
            .on_line =
                [this](LineServer::Id id, const std::string& line) {
                  known.insert(id);
                  return line == "hello\n";
                },
            .on_closed = [this](LineServer::Id, int) { ++closed; },
            .is_known =
                [this](LineServer::Id id) { return known.count(id) > 0; }});
  }
  std::unique_ptr<Connection> come(const std::string& line = "") {
    auto connection =
        std::make_unique<Connection>(loop,
                                     begin_to_connect(place),
                                     Connection::State::connecting,
                                     /*longest_line=*/64,
                                     Connection::Handlers{
                                         .on_open = [] {},
                                         .on_lines = [](const auto&) {},
                                         .on_closed = [](int) {},
                                     });
    connection->send(line);
    return connection;
  }
  void await(const std::function<bool()>& has_come) {
    while (!has_come()) {
      loop.run_once();
    }
  }
};

}  // namespace

TEST_CASE("connections that say nothing keep no host out") {
  GuestServer server(/*most=*/3);
  const auto first = server.come("hello\n");
  server.await([&] { return server.known.size() == 1; });
  std::vector<std::unique_ptr<Connection>> strangers;
  for (int count = 0; count < 20; ++count) {
    strangers.push_back(server.come());
  }
  server.await([&] { return server.guests->count() == 3; });
  const auto second = server.come("hello\n");
  server.await([&] { return server.known.size() == 2; });
  CHECK(server.guests->count() == 3);
  CHECK(server.closed == 0);
}

TEST_CASE("what a guest does not read is not kept without end") {
  GuestServer server(/*most=*/3);
  const Fd guest = begin_to_connect(server.place);
  server.await([&] { return server.guests->count() == 1; });
  // Far more than the sockets of both ends hold.
  server.guests->send(1, std::string(64 << 20, 'x'));
  server.await([&] { return server.closed == 1; });
  CHECK(server.guests->count() == 0);
}

TEST_CASE("a line to a client that has gone raises no SIGPIPE") {
  static std::atomic<int> broken_pipes{0};
  auto* const old_action = ::signal(SIGPIPE, [](int) { ++broken_pipes; });
  GuestServer server(/*most=*/3);
  Fd guest = begin_to_connect(server.place);
  server.await([&] { return server.guests->count() == 1; });
  // Unread data make the client's close a reset of the connection.
  server.guests->send(1, "hello\n");
  pollfd readable{guest.get(), POLLIN, 0};
  REQUIRE(::poll(&readable, 1, 20'000) == 1);
  guest.reset();
  server.guests->send(1, "a\n");
  server.guests->send(1, "b\n");
  server.await([&] { return server.closed == 1; });
  ::signal(SIGPIPE, old_action);
  CHECK(broken_pipes == 0);
}

TEST_CASE("a process connects to its own server without a network") {
  GuestServer server(/*most=*/3);
  CHECK(!server.guests->is_connected_from_here());
  std::string received;
  auto own = std::make_unique<Connection>(
      server.loop,
      server.guests->connect_from_here(),
      Connection::State::connecting,
      /*longest_line=*/64,
      Connection::Handlers{
          .on_open = [] {},
          .on_lines =
              [&received](const auto& lines) { received += lines.front(); },
          .on_closed = [](int) {}});
  own->send("hello\n");
  server.await([&] { return server.known.size() == 1; });
  CHECK((::fcntl(own->socket().get(), F_GETFD) & FD_CLOEXEC) != 0);
  server.guests->send(1, "welcome\n");
  server.await([&] { return received == "welcome\n"; });
  CHECK(server.guests->is_connected_from_here());
  own.reset();
  server.await([&] { return server.closed == 1; });
  CHECK(!server.guests->is_connected_from_here());
}

TEST_CASE("a server without a free descriptor accepts again later") {
  GuestServer server(/*most=*/3);
  const Fd guest = begin_to_connect(server.place);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  server.loop.run_once();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(server.guests->count() == 0);
  server.guests->drop_idle({});
  server.await([&] { return server.guests->count() == 1; });
}

// Linux refuses both sockets in about one of ten thousand rounds.
// DDP_LISTEN_ROUNDS selects more rounds.
TEST_CASE("of two that begin to listen at once, one does") {
  const auto rounds =
      static_cast<int>(ddp::test::number_from("DDP_LISTEN_ROUNDS", 2'000));
  const PortReservation port{0};
  const SocketAddress place = addresses_of("127.0.0.1", port.port()).at(0);
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  std::array<std::atomic<bool>, 2> listens{};
  int nobody = 0;
  const auto run = [&](size_t who) {
    for (int round = 1; round <= rounds; ++round) {
      ++begun;
      while (begun < 2 * round) {
      }
      Fd listener = listen_at(place);
      listens.at(who) = bool(listener);
      ++ended;
      while (ended < 4 * round - 2) {
      }
      if (who == 0 && !listens[0] && !listens[1]) {
        ++nobody;
      }
      listener = Fd();
      ++ended;
      while (ended < 4 * round) {
      }
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  CHECK(nobody == 0);
}

TEST_CASE("a guest's address is that of IPv4, also where it comes over IPv6") {
  const bool is_mapped = GENERATE(false, true);
  if (is_mapped && !listen_at(addresses_of("::", 0).at(0))) {
    WARN("skipped: there is no IPv6");
    return;
  }
  GuestServer server(/*most=*/1, is_mapped ? "::" : "127.0.0.1");
  server.place = addresses_of("127.0.0.1", port_of(server.place)).at(0);
  const auto guest = server.come("hello\n");
  server.await([&] { return server.known.size() == 1; });
}
