#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/probes.h"
#include "launcher/options/options.h"
#include "test/launcher/doctor/machines.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

struct Said {
  Severity severity = Severity::ok;
  std::string text;  // with the advice
};

Said said_of(const std::string& subject,
             const MachineFacts& machine,
             const JobShape& job = {}) {
  for (const Finding& finding : diagnose_network(machine, job)) {
    if (finding.subject == subject) {
      return {finding.severity, finding.text + "; " + finding.fix};
    }
  }
  FAIL("nothing is said of " << subject);
  return {};
}

const JobShape kTwoHosts{.workers = 1, .hosts = 2, .host_rank = 0};

}  // namespace

TEST_CASE("the host's own name") {
  MachineFacts machine = sound_machine();
  NameFacts& host = machine.network.host;
  CHECK(said_of("host name", machine).text == "node7 is 10.0.0.7; ");
  host.addresses = {{"127.0.1.1", true, true}};
  CHECK(said_of("host name", machine).severity == Severity::ok);
  const Said loopback = said_of("host name", machine, kTwoHosts);
  CHECK(loopback.severity == Severity::warning);
  CHECK_THAT(loopback.text, Contains("127.0.1.1 here, where no other host"));
  host.addresses = {{"10.0.0.9", false, false}};
  CHECK_THAT(said_of("host name", machine).text,
             Contains("which no interface of this host has; correct"));
  host = {"node7", "Name or service not known", {}};
  CHECK(said_of("host name", machine).severity == Severity::warning);
  CHECK_THAT(said_of("host name", machine).text,
             Contains("cannot be resolved (Name or service not known); add"));
}

TEST_CASE("the endpoint of a job and its ports") {
  MachineFacts machine = sound_machine();
  CHECK_THAT(said_of("port", machine).text, Contains("none to keep free"));
  auto& endpoint = machine.network.endpoint;
  endpoint = NameFacts{"node7", "", {{"10.0.0.7", true, false}}};
  CHECK(said_of("endpoint", machine, kTwoHosts).text ==
        "node7 (10.0.0.7) is this host; ");
  endpoint = NameFacts{"10.0.0.8", "", {{"10.0.0.8", false, false}}};
  const Said foreign = said_of("endpoint", machine, kTwoHosts);
  CHECK(foreign.severity == Severity::error);
  CHECK_THAT(foreign.text, Contains("10.0.0.8 is no address of this host"));
  CHECK(said_of("endpoint", machine, {.hosts = 2, .host_rank = 1}).text ==
        "10.0.0.8 is another host; ");
  CHECK(said_of("endpoint", machine, {.hosts = 2}).severity == Severity::ok);
  endpoint = NameFacts{"localhost", "", {{"127.0.0.1", true, true}}};
  CHECK(said_of("endpoint", machine, kTwoHosts).severity == Severity::warning);
  endpoint = NameFacts{"nodd0", "Name or service not known", {}};
  CHECK(said_of("endpoint", machine, kTwoHosts).severity == Severity::error);
  CHECK_THAT(said_of("endpoint", machine).text,
             Contains("nodd0 cannot be resolved (Name or service not known); "
                      "check its spelling"));
}

TEST_CASE("a port that is free, and one that is not") {
  MachineFacts machine = sound_machine();
  machine.network.endpoint = machine.network.host;
  machine.network.ports = {{29500, "--master-port", ""}};
  CHECK(said_of("port", machine).text == "29500 (--master-port) is free; ");
  machine.network.ports[0].refusal = "port 29500 is in use";
  const Said taken = said_of("port", machine);
  CHECK(taken.severity == Severity::error);
  CHECK(taken.text ==
        "port 29500 is in use; end the process that listens there (ss -ltnp), "
        "or give another --master-port");
}

TEST_CASE("a meeting port may be another ddprun's of the job") {
  MachineFacts machine = sound_machine();
  machine.network.endpoint = machine.network.host;
  machine.network.ports = {{.port = 29400,
                            .option = "--rdzv-endpoint",
                            .refusal = "port 29400 is in use",
                            .may_be_met = true}};
  const Said met = said_of("port", machine);
  CHECK(met.severity == Severity::warning);
  CHECK_THAT(met.text, Contains("unless it is a ddprun of this job"));
}

TEST_CASE("where a command line's job would meet") {
  const auto point_of = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--doctor");
    return rendezvous_endpoint(
        std::get<DoctorOptions>(parse_options(std::move(arguments), {})).job);
  };
  CHECK(!point_of({}).host);
  const auto one = point_of({"--master-port=29511"});
  REQUIRE(one.ports.size() == 1);
  CHECK(one.host == "127.0.0.1");
  CHECK(one.ports[0].number == 29511);
  const auto guest =
      point_of({"--nnodes=2", "--node-rank=1", "--master-addr=node0"});
  CHECK(guest.host == "node0");
  CHECK(guest.ports.empty());
  const auto fixed =
      point_of({"--nnodes=2", "--node-rank=0", "--master-addr=node0"});
  REQUIRE(fixed.ports.size() == 2);
  CHECK(fixed.host == "node0");
  CHECK(fixed.ports[0].number == 29500);
  CHECK(fixed.ports[1].number == 29600);
  const auto elastic = point_of({"--nnodes=1:2",
                                 "--rdzv-backend=c10d",
                                 "--rdzv-id=job",
                                 "--rdzv-endpoint=node0:29411"});
  REQUIRE(elastic.ports.size() == 1);
  CHECK(elastic.host == "node0");
  CHECK(elastic.ports[0].number == 29411);
  CHECK(elastic.ports[0].option == "--rdzv-endpoint");
  CHECK(elastic.ports[0].may_be_met);
  CHECK(!fixed.ports[1].may_be_met);
}
