#include <memory>
#include <nlohmann/json.hpp>

#include "test/launcher/ddprun/networks.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

// Tests `ddprun --doctor` on several hosts.
namespace {

using Variables = std::map<std::string, std::string>;

Ddprun::Arguments doctor(int rank, const std::string& address) {
  return {"--doctor",
          "--nproc-per-node=1",
          "--nnodes=2",
          "--node-rank=" + std::to_string(rank),
          "--master-addr=" + address};
}

/// Examines two hosts that are connected by a cable.
std::pair<Result, Result> examine_two(const Networks& networks,
                                      const Variables& of_second) {
  Ddprun second(doctor(1, Networks::address(0)),
                of_second,
                "",
                Bound(),
                networks.enter(1));
  Ddprun first(
      doctor(0, Networks::address(0)), {}, "", Bound(), networks.enter(0));
  Result result = first.finish();
  return {std::move(result), second.finish()};
}

}  // namespace

TEST_CASE("doctors of two hosts test the paths between them") {
  const Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  const auto [first, second] = examine_two(networks, {});
  CAPTURE(first.out, first.err, second.out, second.err);
  CHECK_THAT(first.out,
             Contains("ok       hosts: 2 of 2 met at 10.77.0.1:29600: host0 "
                      "and host1\n") &&
                 Contains("ok       ways: 2 of 2 between the hosts connect: "
                          "round trip ") &&
                 Contains("\nhost1  "));
  CHECK_THAT(second.out,
             Contains("ok       hosts: 2 of 2 met at 10.77.0.1:29600") &&
                 Contains("ok       ways: 1 of 1 from host1 connects: "));
  CHECK(!first.left_something);
}

TEST_CASE("the doctors name the host that the other cannot connect to") {
  const Networks networks;
  if (!networks.error().empty()) {
    WARN("skipped: " << networks.error());
    return;
  }
  // At the address of host1, host0 finds itself.
  const auto [first, second] =
      examine_two(networks, {{"GLOO_SOCKET_IFNAME", "lo"}});
  CAPTURE(first.out, first.err, second.out, second.err);
  CHECK(first.code() == 1);
  CHECK_THAT(first.out,
             Contains("error    ways: host0 cannot connect to host1 at "
                      "127.0.0.1: refused, though host1 connects to host0; ") &&
                 Contains("  refused\n"));
  CHECK_THAT(second.out, Contains("ok       ways: 1 of 1 from host1 connects"));
}

TEST_CASE("a doctor whose other hosts do not come names them") {
  Ddprun::Arguments arguments = doctor(0, "127.0.0.1");
  arguments.push_back("--rdzv-conf=join_timeout=0.2,meeting_port=29687");
  arguments.push_back("--json");
  const Result alone = run_ddprun(arguments);
  CAPTURE(alone.out, alone.err);
  CHECK(alone.code() == 1);
  CHECK_THAT(alone.out,
             Contains("1 of 2 met at 127.0.0.1:29687: ") &&
                 Contains("; node rank 1 did not come within 1 s"));
  const auto document = nlohmann::json::parse(alone.out);
  CHECK(document["hosts"]["hosts"].size() == 1);
  CHECK(document["hosts"]["ways"].empty());
  arguments[3] = "--node-rank=1";
  const Result other = run_ddprun(arguments);
  CHECK(other.code() == 1);
  CHECK_THAT(other.out,
             Contains("nobody answers at --master-addr 127.0.0.1:29687"));
}

TEST_CASE("a doctor is refused as a host of its job would be") {
  Ddprun::Arguments arguments = doctor(0, "127.0.0.1");
  arguments.push_back("--rdzv-conf=join_timeout=60,meeting_port=29688");
  Ddprun first(arguments, {{"DDPRUN_TOKEN", "x"}});
  arguments[3] = "--node-rank=1";
  const Result stranger = run_ddprun(arguments, {{"DDPRUN_TOKEN", "y"}});
  CAPTURE(stranger.out, stranger.err);
  CHECK(stranger.code() == 1);
  CHECK_THAT(stranger.out,
             Contains("error    hosts: ") && Contains("DDPRUN_TOKEN"));
  // The same command line with the right token is accepted.
  const Result second = run_ddprun(arguments, {{"DDPRUN_TOKEN", "x"}});
  CHECK_THAT(second.out, Contains("ok       hosts: 2 of 2 met at "));
  CHECK_THAT(first.finish().out, Contains("ok       ways: 2 of 2 between"));
}

TEST_CASE("a job's host takes no place among doctors") {
  Ddprun::Arguments arguments = doctor(0, "127.0.0.1");
  arguments.push_back("--rdzv-conf=join_timeout=60,meeting_port=29689");
  Ddprun first(arguments);
  arguments[3] = "--node-rank=1";
  Ddprun::Arguments job(arguments.begin() + 1, arguments.end());
  job.push_back("true");
  const Result host = run_ddprun(job);
  CAPTURE(host.out, host.err);
  CHECK(host.code() == 1);
  CHECK_THAT(host.err, Contains("expected job none-doctor"));
  CHECK_THAT(run_ddprun(arguments).out,
             Contains("ok       hosts: 2 of 2 met at "));
  CHECK_THAT(first.finish().out, Contains("ok       ways: 2 of 2 between"));
}
