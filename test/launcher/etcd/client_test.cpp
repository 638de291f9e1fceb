#include "launcher/hosts/etcd/client.h"

#include "test/launcher/bound_loop.h"
#include "test/launcher/etcd/ask_etcd.h"
#include "test/launcher/full_listener.h"
#include "test/support/catch.h"

using namespace launcher;

namespace {

constexpr std::chrono::seconds kRequestTime{1};

Endpoint endpoint_of(const test::FullListener& silent) {
  return {.host = "127.0.0.1", .port = port_of(silent.address())};
}

}  // namespace

TEST_CASE("etcd client: no member takes connections") {
  const test::FullListener first;
  const test::FullListener second;
  const EtcdSettings settings{
      .endpoints = {endpoint_of(first), endpoint_of(second)},
      .request_time = kRequestTime};
  // A watch without a connection must not report that nothing has changed.
  const auto kind = GENERATE(EtcdCall::Kind::read, EtcdCall::Kind::wait);
  EventLoop loop;
  test::bound(loop);
  const EtcdAnswer answer =
      test::ask_etcd(loop, settings, "job", {.kind = kind});
  if (answer.outcome == EtcdAnswer::Outcome::hopeless) {
    CHECK_THAT(answer.text, Catch::Contains("libcurl"));  // not on this host
    return;
  }
  CHECK(answer.outcome == EtcdAnswer::Outcome::unreachable);
  for (const Endpoint& endpoint : settings.endpoints) {
    CHECK_THAT(answer.text, Catch::Contains(std::to_string(endpoint.port)));
  }
}

TEST_CASE("etcd client: no member that takes a connection answers") {
  const Fd silent = listen_at(test::at_free_port("127.0.0.1"));
  const EtcdSettings settings{
      .endpoints = {{.host = "127.0.0.1", .port = port_of(own_end(silent))}},
      .request_time = kRequestTime};
  EventLoop loop;
  test::bound(loop);
  const EtcdAnswer answer = test::ask_etcd(loop, settings, "job", {});
  if (answer.outcome == EtcdAnswer::Outcome::hopeless) {
    CHECK_THAT(answer.text, Catch::Contains("libcurl"));  // not on this host
    return;
  }
  CHECK(answer.outcome == EtcdAnswer::Outcome::unreachable);
  // The whole call has a longer limit with another error.
  CHECK_THAT(answer.text, Catch::Contains("check that etcd runs there"));
}

TEST_CASE("etcd client: a new call gives up the one before") {
  const test::FullListener silent;
  const EtcdSettings settings{.endpoints = {endpoint_of(silent)},
                              .request_time = kRequestTime};
  EventLoop loop;
  test::bound(loop);
  int answers = 0;
  EtcdClient client(
      loop, settings, "job", [&](const EtcdAnswer&) { ++answers; });
  for (int call = 0; call < 3; ++call) {
    client.start({});
  }
  while (answers == 0) {
    loop.run_once();
  }
  bool is_over = false;
  loop.arm_timer("test", 2 * kRequestTime, [&] { is_over = true; });
  while (!is_over) {
    loop.run_once();
  }
  CHECK(answers == 1);
}
