#include "launcher/hosts/coordinator_listener.h"

#include "launcher/base/error.h"
#include "launcher/net/port.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"

using Catch::Contains;
using Catch::Matches;
using namespace launcher;

namespace {

/// Listens at a free port of each address, for an endpoint with the host
/// `host`.
std::vector<Fd> listen_for(const std::string& host,
                           const std::vector<std::string>& addresses,
                           std::optional<bool> is_host = {}) {
  CoordinatorEndpoint coordinator;
  coordinator.endpoint = {host, 0};
  coordinator.is_here = is_host;
  std::vector<SocketAddress> all;
  for (const std::string& address : addresses) {
    all.push_back(addresses_of(address, 0).at(0));
  }
  return listen_as_coordinator(coordinator, all);
}

std::string place_of(const std::vector<Fd>& listeners) {
  std::string text;
  for (const Fd& listener : listeners) {
    text += (text.empty() ? "" : " ") + numeric_host(own_end(listener));
  }
  return text.empty() ? "none" : text;
}

}  // namespace

TEST_CASE("hosts meet at the chosen address alone") {
  CHECK(place_of(listen_for("127.0.0.2", {"127.0.0.2"})) == "127.0.0.2");
  CHECK(place_of(listen_for("localhost", {"127.0.0.1"})) == "127.0.0.1");
  CHECK(place_of(listen_for("127.0.0.1", {"127.0.0.1"}, true)) == "127.0.0.1");
}

TEST_CASE("whose address it is not does not host, unless it is told to") {
  // 203.0.113.0/24 belongs to no machine.
  CHECK(place_of(listen_for("there", {"203.0.113.9"})) == "none");
  CHECK(place_of(listen_for("127.0.0.1", {"127.0.0.1"}, false)) == "none");
  const auto all = GENERATE("203.0.113.9", "its-public-name");
  const std::string told = place_of(listen_for(all, {"203.0.113.9"}, true));
  CHECK((told == "::" || told == "0.0.0.0"));
}

TEST_CASE("a name that means loopback on its own host is for others, too") {
  const std::string place = place_of(listen_for("node7", {"127.0.1.1"}));
  CHECK((place == "::" || place == "0.0.0.0"));
}

TEST_CASE("the host that waits alone hears what may keep others away") {
  CoordinatedConfig config;
  config.terms.ranks_are_fixed = true;
  CoordinatorEndpoint& coordinator = config.coordinator;
  coordinator.host_option = "--master-addr";
  coordinator.is_here = true;
  const auto advice = [&](const std::string& host, const std::string& address) {
    coordinator.endpoint = {host, 29600};
    return advice_for(config,
                      addresses_of(address, 29600),
                      listen_for(host, {address}, true));
  };
  const std::string by_option =
      "; the number of hosts is from --nnodes or PET_NNODES";
  CHECK_THAT(
      advice("localhost", "127.0.0.1"),
      Matches(
          "; listens at 127\\.0\\.0\\.1:[0-9]+; no other machine reaches "
          "--master-addr localhost:29600, a loopback address: give all hosts "
          "this machine's name or address instead" +
          by_option));
  const std::string everywhere =
      "; listens at port [0-9]+ of all addresses of this host";
  CHECK_THAT(advice("node7", "127.0.1.1"), Matches(everywhere + by_option));
  // 203.0.113.0/24 belongs to no machine.
  CHECK_THAT(advice("node7", "203.0.113.9"),
             Matches(everywhere +
                     "; node7 is no address of this machine: if it is another "
                     "host's, give --node-rank here" +
                     by_option));
  config.terms.ranks_are_fixed = false;
  CHECK_THAT(advice("node7", "203.0.113.9"), Matches(everywhere + by_option));
  config.scheduler = "Slurm";
  CHECK_THAT(advice("node7", "127.0.1.1"),
             Matches(everywhere +
                     "; the number of hosts is from Slurm: --nnodes=1 starts "
                     "this one alone"));
}

TEST_CASE("hosts meet at every address of one name, in whatever order") {
  // 203.0.113.0/24 belongs to no machine.
  CHECK(place_of(
            listen_for("name",
                       {"203.0.113.9", "127.0.0.3", "127.0.0.1", "127.0.0.2"},
                       false)) == "none");
  const auto order =
      GENERATE(std::vector<std::string>{"127.0.0.3", "127.0.0.1"},
               std::vector<std::string>{"127.0.0.1", "127.0.0.3"});
  CHECK(place_of(listen_for("localhost", order)) == "127.0.0.1 127.0.0.3");
}

TEST_CASE("of two processes of a host one has all addresses of a name") {
  const PortReservation port(0);
  CoordinatorEndpoint coordinator;
  coordinator.endpoint = {"localhost", port.port()};
  const auto at = [&](const std::string& address) {
    return addresses_of(address, port.port()).at(0);
  };
  const auto first =
      listen_as_coordinator(coordinator, {at("127.0.0.1"), at("127.0.0.3")});
  CHECK(first.size() == 2);
  CHECK(listen_as_coordinator(coordinator, {at("127.0.0.3"), at("127.0.0.1")})
            .empty());
}

TEST_CASE("a host that is told to host listens where it can") {
  const PortReservation port(0);
  const auto at = [&](const std::string& address) {
    return addresses_of(address, port.port()).at(0);
  };
  const Fd taken = listen_at(at("127.0.0.1"));
  REQUIRE(taken);
  CoordinatorEndpoint coordinator;
  coordinator.endpoint = {"localhost", port.port()};
  coordinator.is_here = true;
  CHECK(place_of(listen_as_coordinator(
            coordinator, {at("127.0.0.1"), at("127.0.0.3")})) == "127.0.0.3");
}

TEST_CASE("a port that is in use is said where the host must be this one") {
  const auto taken = listen_for("127.0.0.1", {"127.0.0.1"});
  REQUIRE(taken.size() == 1);
  const SocketAddress place = own_end(taken.front());
  CoordinatorEndpoint coordinator;
  coordinator.endpoint.host = "127.0.0.1";
  CHECK(listen_as_coordinator(coordinator, {place}).empty());
  coordinator.is_here = true;
  CHECK_THROWS_WITH(listen_as_coordinator(coordinator, {place}),
                    Contains("--rdzv-endpoint: cannot listen at 127.0.0.1") &&
                        Contains("give all hosts another --rdzv-endpoint"));
  coordinator.host_option = "--master-addr";
  coordinator.port_option = "--rdzv-conf=meeting_port";
  CHECK_THROWS_WITH(listen_as_coordinator(coordinator, {place}),
                    Contains("--master-addr: cannot listen at 127.0.0.1") &&
                        Contains("another --rdzv-conf=meeting_port"));
}
