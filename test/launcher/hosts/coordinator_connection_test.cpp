#include "launcher/hosts/member/coordinator_connection.h"

#include "test/launcher/bound_loop.h"
#include "test/launcher/full_listener.h"
#include "test/support/catch.h"

using namespace launcher;
using launcher::test::at_free_port;
using launcher::test::FullListener;

// A client's connection to an endpoint with several addresses.
namespace {

/// Records where a connection was opened or lost.
struct LinkedHost {
  EventLoop loop;
  std::string text;
  CoordinatorConnection connection;

  explicit LinkedHost(std::vector<SocketAddress> addresses)
      : connection(
            loop,
            {.on_open = [this](const std::string& at) { add("open " + at); },
             .on_message = [this](const Message&) { add("message"); },
             .on_lost =
                 [this](const std::string& how, bool is_gone) {
                   add((is_gone ? "gone " : "lost ") +
                       how.substr(0, how.find(':')));
                 }}) {
    connection.use(std::move(addresses));
    test::bound(loop);
  }

  std::string next() {
    while (text.empty()) {
      loop.run_once();
    }
    return std::exchange(text, "");
  }
  void add(const std::string& what) {
    text += (text.empty() ? "" : ", ") + what;
  }
};

}  // namespace

TEST_CASE("an address that never answers is followed by the next one") {
  const FullListener full;
  const Fd good = listen_at(at_free_port("127.0.0.1"));
  LinkedHost host({full.address(), own_end(good)});
  host.connection.connect();
  bool is_over = false;
  host.loop.arm_timer(
      "a while", std::chrono::milliseconds(30), [&] { is_over = true; });
  while (!is_over) {
    host.loop.run_once();
  }
  CHECK(host.text.empty());
  host.connection.disconnect();
  host.connection.connect();
  CHECK(host.next() == "open 127.0.0.1");
}

TEST_CASE("a connection that fails at once is reported by the event loop") {
  const Fd good = listen_at(at_free_port("127.0.0.1"));
  // A connection to a multicast address fails at once.
  LinkedHost host({at_free_port("224.0.0.1"), own_end(good)});
  host.connection.connect();
  CHECK(host.text.empty());
  CHECK(host.next() == "lost 224.0.0.1");
  host.connection.connect();
  CHECK(host.next() == "open 127.0.0.1");
  host.connection.disconnect();
  host.connection.use({at_free_port("224.0.0.1")});
  host.connection.connect();
  host.connection.disconnect();
  host.connection.use({own_end(good)});
  host.connection.connect();
  CHECK(host.next() == "open 127.0.0.1");
}

TEST_CASE("addresses take turns until one answers, which then stays") {
  const Fd first = listen_at(at_free_port("127.0.0.2"));
  Fd second = listen_at(at_free_port("127.0.0.3"));
  Fd third = listen_at(at_free_port("127.0.0.4"));
  const SocketAddress closed = own_end(third);
  third.reset();
  LinkedHost host({closed, own_end(first), own_end(second)});
  host.connection.connect();
  CHECK(host.next() == "lost 127.0.0.4");
  host.connection.connect();
  host.next();
  // The listener accepts the connection, but sends nothing.
  host.connection.disconnect();
  host.connection.connect();
  host.next();
  const auto await_guest = [&host](const Fd& listener) {
    Fd guest;
    while (!(guest = accept_from(listener))) {
      host.loop.arm_timer("again", std::chrono::milliseconds(1), [] {});
      host.loop.run_once();
    }
    return guest;
  };
  const Fd guest = await_guest(second);
  const std::string noted = encode(Noted{});
  REQUIRE(::send(guest.get(), noted.data(), noted.size(), MSG_NOSIGNAL) > 0);
  CHECK(host.next() == "message");
  host.connection.disconnect();
  host.connection.connect();
  host.next();
  CHECK(await_guest(second));
  host.connection.disconnect();
  second.reset();
  host.connection.connect();
  CHECK(host.next() == "gone 127.0.0.3");
}

TEST_CASE("an endpoint at which another program answers has no coordinator") {
  const Fd listener = listen_at(at_free_port("127.0.0.1"));
  LinkedHost host({own_end(listener)});
  host.connection.connect();
  CHECK(host.next() == "open 127.0.0.1");
  const Fd guest = accept_from(listener);
  const std::string banner = "SSH-2.0-OpenSSH_9.6\r\n";
  REQUIRE(::send(guest.get(), banner.data(), banner.size(), MSG_NOSIGNAL) > 0);
  CHECK(host.next() == "gone 127.0.0.1");
}
