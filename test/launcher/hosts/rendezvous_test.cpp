#include "launcher/hosts/make_rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <mutex>

#include "launcher/net/address.h"
#include "launcher/net/name_lookup.h"
#include "launcher/net/port.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"

using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;
using namespace launcher;

namespace {

/// Returns a socket like a server's: reusable address, bound, not listening
/// yet.
Fd bind_to(int port, int reuse = 1) {
  Fd result(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<in_port_t>(port));
  if (::bind(result.get(),
             reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0) {
    result.reset();
  }
  return result;
}

int port_of(const Fd& bound) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  REQUIRE(::getsockname(
              bound.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

/// Collects a rendezvous' answers in order.
struct Answers {
  std::vector<RendezvousAnswer> all;

  Rendezvous::Handler handler() {
    return [this](const RendezvousAnswer& answer) { all.push_back(answer); };
  }
  /// Returns the only answer since the last call.
  template <typename Expected>
  Expected take() {
    REQUIRE(all.size() == 1);
    CAPTURE(all.front().index());
    REQUIRE(std::holds_alternative<Expected>(all.front()));
    const auto answer = std::get<Expected>(all.front());
    all.clear();
    return answer;
  }
};

}  // namespace

TEST_CASE("a reserved port goes to a store and to nobody else") {
  const PortReservation reservation(0);
  std::vector<Fd> others;
  for (int count = 0; count < 500; ++count) {
    others.push_back(bind_to(0));
    REQUIRE(others.back());
    CHECK(port_of(others.back()) != reservation.port());
  }
  CHECK(!bind_to(reservation.port(), /*reuse=*/0));
  const Fd store = bind_to(reservation.port());
  REQUIRE(store);
  CHECK(::listen(store.get(), 1) == 0);
  // With a listener the port is in use.
  CHECK_THROWS_WITH(
      PortReservation(reservation.port()),
      Contains("port " + std::to_string(reservation.port()) + " is in use") &&
          Contains("--master-port"));
}

TEST_CASE("one host: every world is formed at once, with a fresh port") {
  Answers answers;
  const auto rendezvous = make_uncoordinated_rendezvous(
      {.master = {"127.0.0.1", 0}, .host_rank = 0, .host_count = 1},
      answers.handler());
  CHECK(answers.all.empty());
  rendezvous->join({.worker_count = 3});
  const World first = answers.take<WorldFormed>().world;
  CHECK(first.host_rank == 0);
  CHECK(first.host_count == 1);
  CHECK(first.first_rank == 0);
  CHECK(first.world_size == 3);
  CHECK(first.master.host == "127.0.0.1");
  CHECK(first.master.port > 0);
  rendezvous->join({.worker_count = 3});
  CHECK(answers.take<WorldFormed>().world.master.port != first.master.port);
}

TEST_CASE("worlds are counted, and how many followed a failure") {
  Answers answers;
  const auto rendezvous = make_uncoordinated_rendezvous(
      {.master = {"127.0.0.1", 0}, .host_rank = 0, .host_count = 1},
      answers.handler());
  for (const bool fails : {false, true, true}) {
    rendezvous->join({});
    answers.take<WorldFormed>();
    if (fails) {
      rendezvous->report(HostFailed{0, {.code = 1}});
      CHECK(answers.all.empty());
    }
  }
  rendezvous->join({});
  const World world = answers.take<WorldFormed>().world;
  CHECK(world.generation == 3);
  CHECK(world.restarts == 2);
}

TEST_CASE("a job without messages is closed by its end, left in silence") {
  Answers answers;
  const auto rendezvous = make_uncoordinated_rendezvous(
      {.master = {"host0", 29500}, .host_rank = 1, .host_count = 2},
      answers.handler());
  rendezvous->join({});
  answers.take<WorldFormed>();
  SECTION("success") {
    rendezvous->report(HostSucceeded{});
    CHECK(answers.take<JobClosed>().exit_code == 0);
  }
  SECTION("a failure, of which the others do not hear") {
    rendezvous->report(HostFailed{1, {.signal = 9}});
    CHECK(answers.take<JobClosed>().exit_code == 128 + 9);
  }
  rendezvous->leave();
  CHECK(answers.all.empty());
}

TEST_CASE(
    "uncoordinated hosts: the endpoint and the place that the user names") {
  Answers answers;
  const auto rendezvous = make_uncoordinated_rendezvous(
      {.master = {"host0", 29500}, .host_rank = 2, .host_count = 3},
      answers.handler());
  rendezvous->join({.worker_count = 4});
  const World world = answers.take<WorldFormed>().world;
  CHECK(world.host_rank == 2);
  CHECK(world.host_count == 3);
  CHECK(world.first_rank == 8);
  CHECK(world.world_size == 12);
  CHECK(world.master.host == "host0");
  CHECK(world.master.port == 29500);
}

TEST_CASE("uncoordinated hosts check the port on rank 0's host only") {
  const Fd listener = bind_to(0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  const Endpoint taken{"host0", port_of(listener)};
  Answers answers;
  make_uncoordinated_rendezvous(
      {.master = taken, .host_rank = 0, .host_count = 2}, answers.handler())
      ->join({});
  CHECK_THAT(answers.take<RendezvousLost>().text, Contains("is in use"));
  make_uncoordinated_rendezvous(
      {.master = taken, .host_rank = 1, .host_count = 2}, answers.handler())
      ->join({});
  CHECK(answers.take<WorldFormed>().world.master.port == taken.port);
}

namespace {

constexpr std::chrono::milliseconds kTimeForAnswers{1'000};

/// Answers of a name service, which a thread asks for.
class FakeNames {
 public:
  void answer(int error, const std::string& address = "") {
    const std::lock_guard lock(mutex_);
    error_ = error;
    address_ = address;
  }
  NameService service() {
    return [this](const std::string&, int port) {
      const std::lock_guard lock(mutex_);
      return Resolved{error_,
                      address_.empty()
                          ? std::vector<SocketAddress>()
                          : ddp::detail::addresses_of(address_, port)};
    };
  }

 private:
  std::mutex mutex_;
  int error_ = EAI_NONAME;
  std::string address_;
};

Resolved never_answer(const std::string&, int) {
  for (;;) {
    ::pause();
  }
}

/// A host that looks up the name of the endpoint, which is its own host.
struct NamedHost {
  EventLoop loop;
  Answers answers;
  FakeNames names;
  const PortReservation port{0};
  CoordinatedConfig config;
  std::unique_ptr<Rendezvous> rendezvous;

  NamedHost() {
    test::bound(loop);
    config.coordinator.endpoint = {"node0", port.port()};
    config.terms = {.run_id = "job", .least_hosts = 1, .most_hosts = 2};
    config.timeouts.last_call = std::chrono::milliseconds(0);
    config.timeouts.between_lookups = std::chrono::milliseconds(1);
  }
  void join() { join(names.service()); }
  void join(const NameService& ask) {
    rendezvous = make_rendezvous(loop, config, "node0", answers.handler(), ask);
    rendezvous->join({});
  }
  void await_answer() {
    while (answers.all.empty()) {
      loop.run_once();
    }
  }
};

}  // namespace

TEST_CASE("hosts meet once the name has an address") {
  NamedHost host;
  host.names.answer(0, "127.0.0.1");
  host.join();
  CHECK(host.answers.all.empty());
  host.await_answer();
  CHECK(host.answers.take<WorldFormed>().world.master.host == "node0");
}

TEST_CASE("a name that can never have an address is why there is no world") {
  NamedHost host;
  host.config.coordinator.endpoint.host = "10.0.0.256";
  host.join();
  CHECK(host.answers.take<RendezvousLost>().text ==
        "host name 10.0.0.256 cannot be resolved; correct it, or give an IP "
        "address");
}

TEST_CASE("a name that has no address yet is asked for again") {
  NamedHost host;
  host.config.timeouts.until_news = kTimeForAnswers;
  host.join();
  host.await_answer();
  CHECK_THAT(host.answers.take<RendezvousNote>().text,
             StartsWith("waiting at --rdzv-endpoint node0:") &&
                 Contains(": no ddprun has answered there yet (host name node0 "
                          "cannot be resolved (Name or service not known)); "
                          "gives up in ") &&
                 EndsWith(" s (--rdzv-conf join_timeout)"));
  host.names.answer(0, "127.0.0.1");
  host.await_answer();
  host.answers.take<WorldFormed>();
}

TEST_CASE("a name that never gets an address is given up") {
  NamedHost host;
  host.config.timeouts.join = kTimeForAnswers;
  host.names.answer(EAI_AGAIN);
  host.join();
  host.await_answer();
  CHECK_THAT(host.answers.take<RendezvousLost>().text,
             StartsWith("no ddprun answers at --rdzv-endpoint node0:") &&
                 Contains(" (host name node0 cannot be resolved (Temporary "
                          "failure in name resolution)); start ddprun on that "
                          "host, and check the name"));
}

TEST_CASE("a name service that does not answer can be left at once") {
  NamedHost host;
  host.join(never_answer);
  SECTION("by leaving") {
    host.rendezvous->leave();
  }
  SECTION("by the end of all") {}
  CHECK(host.answers.all.empty());
}

TEST_CASE("a name service that does not answer is told") {
  NamedHost host;
  host.config.timeouts.until_news = std::chrono::milliseconds(10);
  host.join(never_answer);
  host.await_answer();
  CHECK_THAT(host.answers.take<RendezvousNote>().text,
             Contains("waiting at --rdzv-endpoint node0:") &&
                 Contains("(the name service has not said yet which address "
                          "host node0 has)"));
}

TEST_CASE("a name service that does not answer is given up") {
  NamedHost host;
  host.config.timeouts.join = std::chrono::milliseconds(30);
  host.join(never_answer);
  host.await_answer();
  CHECK_THAT(host.answers.take<RendezvousLost>().text,
             Contains("which address host node0 has); start ddprun on that "
                      "host, and check the name"));
}

TEST_CASE("a name that means another host by now is followed there") {
  EventLoop loop;
  test::bound(loop);
  CoordinatedConfig config;
  const PortReservation port(0);
  config.coordinator.endpoint = {"127.0.0.3", port.port()};
  config.terms = {.run_id = "job", .least_hosts = 2, .most_hosts = 2};
  Answers of_first;
  const auto first = make_rendezvous(loop, config, "first", of_first.handler());
  first->join({});
  config.coordinator.endpoint.host = "node0";
  config.coordinator.is_here = false;
  config.timeouts.between_lookups = std::chrono::milliseconds(1);
  FakeNames names;
  names.answer(0, "127.0.0.2");
  Answers of_second;
  const auto second = make_rendezvous(
      loop, config, "second", of_second.handler(), names.service());
  second->join({});
  loop.arm_timer("the name has moved", std::chrono::milliseconds(20), [&] {
    names.answer(0, "127.0.0.3");
  });
  while (of_second.all.empty()) {
    loop.run_once();
  }
  CHECK(of_second.take<WorldFormed>().world.host_count == 2);
}

TEST_CASE(
    "the coordinator's host is over once the others know that it leaves") {
  EventLoop loop;
  test::bound(loop);
  CoordinatedConfig config;
  const PortReservation port(0);
  config.coordinator.endpoint = {"127.0.0.1", port.port()};
  config.terms = {.run_id = "job", .least_hosts = 2, .most_hosts = 2};
  Answers of_first;
  Answers of_second;
  auto first = make_rendezvous(loop, config, "first", of_first.handler());
  first->join({});
  const auto second =
      make_rendezvous(loop, config, "second", of_second.handler());
  second->join({});
  while (of_first.all.empty() || of_second.all.empty()) {
    loop.run_once();
  }
  CHECK(of_first.take<WorldFormed>().world.master.host == "127.0.0.1");
  of_second.take<WorldFormed>();
  first->leave();
  while (!first->is_over()) {
    loop.run_once();
  }
  first.reset();
  while (of_second.all.empty()) {
    loop.run_once();
  }
  CHECK_THAT(of_second.take<JobClosed>().text,
             Contains("host first, at which the hosts of the job meet, has "
                      "left"));
}

TEST_CASE("a host whose name turns out to be its own lets the others come") {
  NamedHost host;
  // A connection to a multicast address fails at once.
  host.names.answer(0, "224.0.0.1");
  host.join();
  host.loop.arm_timer("the name has moved", std::chrono::milliseconds(20), [&] {
    host.names.answer(0, "127.0.0.1");
  });
  host.await_answer();
  CHECK(host.answers.take<WorldFormed>().world.world_size == 1);
}

TEST_CASE("a host listens at its own address once the port is free") {
  EventLoop loop;
  test::bound(loop);
  Fd other = listen_at(addresses_of("127.0.0.1", 0).front());
  CoordinatedConfig config;
  config.coordinator.endpoint = {"127.0.0.1", port_of(own_end(other))};
  config.terms = {.run_id = "job", .least_hosts = 1, .most_hosts = 2};
  config.timeouts.last_call = std::chrono::milliseconds(0);
  config.timeouts.between_lookups = std::chrono::milliseconds(1);
  Answers answers;
  const auto rendezvous =
      make_rendezvous(loop, config, "node0", answers.handler());
  rendezvous->join({});
  loop.arm_timer("the port is free", std::chrono::milliseconds(20), [&other] {
    other.reset();
  });
  while (answers.all.empty()) {
    loop.run_once();
  }
  CHECK(answers.take<WorldFormed>().world.world_size == 1);
}

TEST_CASE("a slow name service does not shorten the wait for other hosts") {
  NamedHost host;
  host.config.terms.least_hosts = 2;
  host.config.timeouts.join = std::chrono::milliseconds(3'000);
  host.loop.arm_timer("the host has an address",
                      std::chrono::milliseconds(200),
                      [&host] { host.names.answer(0, "127.0.0.1"); });
  const auto begin = std::chrono::steady_clock::now();
  host.join();
  host.await_answer();
  CHECK_THAT(host.answers.take<JobClosed>().text,
             Contains("expected at least 2 hosts, but got 1 (node0)"));
  CHECK(std::chrono::steady_clock::now() - begin >=
        host.config.timeouts.join + std::chrono::milliseconds(200));
}

TEST_CASE("what is no host name never gets an address") {
  for (const std::string& name :
       {std::string("node0"),
        std::string("train-0.train.default.svc.cluster.local."),
        std::string("my_host"),
        std::string("b\xc3\xbc"
                    "cher"),
        std::string(63, 'a') + ".example"}) {
    INFO(name);
    CHECK(can_be_host_name(name));
  }
  std::string long_name(254, 'a');
  for (size_t at = 50; at < long_name.size(); at += 50) {
    long_name[at] = '.';
  }
  for (const std::string& name : {std::string(),
                                  std::string("."),
                                  std::string("a..b"),
                                  std::string(".a"),
                                  std::string("10.0.0.256"),
                                  std::string("no host"),
                                  std::string("node0:29500"),
                                  std::string("fe80::1%none"),
                                  std::string("no-such-host.INVALID."),
                                  std::string(64, 'a'),
                                  long_name}) {
    INFO(name);
    CHECK(!can_be_host_name(name));
  }
}

TEST_CASE("a host that waits for others says so") {
  EventLoop loop;
  test::bound(loop);
  const PortReservation port(0);
  CoordinatedConfig config;
  config.coordinator.endpoint = {"127.0.0.1", port.port()};
  config.terms = {.run_id = "job", .least_hosts = 2, .most_hosts = 2};
  config.timeouts.until_news = kTimeForAnswers;
  Answers answers;
  const auto rendezvous =
      make_rendezvous(loop, config, "node7", answers.handler());
  rendezvous->join({});
  while (answers.all.empty()) {
    loop.run_once();
  }
  CHECK_THAT(
      answers.take<RendezvousNote>().text,
      Contains("waiting at --rdzv-endpoint 127.0.0.1:") &&
          Contains(": 1 of 2 hosts is here (node7); gives up in") &&
          Contains("no other machine reaches --rdzv-endpoint 127.0.0.1:"));
}

TEST_CASE("addresses need no name service") {
  for (const char* host : {"127.0.0.1", "::1", "10.0.0.7", "fe80::1"}) {
    CHECK(is_address(host));
    CHECK(ask_name_service(host, 0).addresses.size() == 1);
  }
  CHECK(!is_address("localhost"));
  CHECK(!is_address("no-such-host.invalid"));
}
