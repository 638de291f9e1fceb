#include <algorithm>

#include "launcher/net/address.h"
#include "launcher/net/port.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;
using Arguments = Ddprun::Arguments;

// Static hosts with ranks that the user sets: each is a ddprun on this machine.
namespace {

const std::map<std::string, std::string> kSecret{{"DDPRUN_TOKEN", "secret"}};

/// Two ports: for the store and for the rendezvous.
class StaticPlace {
 public:
  /// @param settings additional settings of --rdzv-conf, each with a comma
  ///     before it
  Arguments arguments(int rank,
                      const Arguments& more,
                      const std::string& settings = "") const {
    Arguments all{
        "--nnodes=2",
        "--node-rank=" + std::to_string(rank),
        "--master-addr=127.0.0.1",
        "--master-port=" + std::to_string(store_.port),
        "--rdzv-conf=meeting_port=" + std::to_string(meet_.port) + settings};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  int store_port() const { return store_.port; }

 private:
  // ddprun may still reserve these ports.
  ddp::detail::ReservedPort store_ = ddp::detail::reserve_port(0);
  ddp::detail::ReservedPort meet_ = ddp::detail::reserve_port(0);
};

}  // namespace

TEST_CASE("static hosts: each has its rank, and its number of workers") {
  const StaticPlace place;
  const auto start = [&](int rank, const std::string& workers) {
    return std::make_unique<Ddprun>(
        place.arguments(rank,
                        {"--nproc-per-node=" + workers,
                         resource("print_env"),
                         "GROUP_RANK",
                         "WORLD_SIZE",
                         "MASTER_ADDR",
                         "MASTER_PORT"}),
        kSecret);
  };
  const auto second = start(1, "2");
  const auto first = start(0, "1");
  std::string out;
  for (const auto* host : {&first, &second}) {
    const Result result = (*host)->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK(result.err.empty());
    CHECK(!result.left_something);
    for (int rank = host == &first ? 0 : 1; rank < (host == &first ? 1 : 3);
         ++rank) {
      CHECK(result.lines_of("[" + std::to_string(rank) + "] ") ==
            std::vector<std::string>{
                std::string("GROUP_RANK=") + (host == &first ? "0" : "1"),
                "WORLD_SIZE=3",
                "MASTER_ADDR=127.0.0.1",
                "MASTER_PORT=" + std::to_string(place.store_port())});
    }
  }
}

TEST_CASE("a failure on one static host starts the workers of all again") {
  const StaticPlace place;
  const auto arguments = [&](int rank) {
    return place.arguments(rank,
                           {"--max-restarts=1", resource("fail_until"), "1"});
  };
  Ddprun first(arguments(0), kSecret);
  Ddprun second(arguments(1), kSecret);
  for (const Result& result : {first.finish(), second.finish()}) {
    CAPTURE(result.out, result.err);
    CHECK(result.code() == 0);
    CHECK_THAT(result.out, Contains("attempt 1") && !Contains("attempt 2"));
    CHECK_THAT(result.err, Contains("restart 1 of 1"));
  }
}

TEST_CASE("the last failure ends the job on all static hosts") {
  const StaticPlace place;
  const auto arguments = [&](int rank) {
    return place.arguments(rank, {resource("exit_with"), "7", "1", "oh"});
  };
  Ddprun first(arguments(0), kSecret);
  Ddprun second(arguments(1), kSecret);
  CHECK(first.finish().code() == 7);
  const Result result = second.finish();
  CHECK(result.code() == 7);
  CHECK_THAT(result.err, Contains("rank 1 failed first"));
}

TEST_CASE("a dry run meets nobody and resolves no name") {
  const Result fixed = run_ddprun({"--nnodes=2",
                                   "--node-rank=1",
                                   "--master-addr=no-such-host.invalid",
                                   "--dry-run",
                                   "true"});
  CAPTURE(fixed.err);
  CHECK(fixed.code() == 0);
  CHECK_THAT(fixed.out,
             Contains("WORLD_SIZE=2") && Contains("RANK=1") &&
                 Contains("MASTER_ADDR=no-such-host.invalid") &&
                 !Contains("when the hosts meet"));
  const Result agreed = run_ddprun({"--nnodes=3",
                                    "--nproc-per-node=2",
                                    "--rdzv-backend=c10d",
                                    "--rdzv-endpoint=no-such-host.invalid",
                                    "--dry-run",
                                    "true"});
  CAPTURE(agreed.err);
  CHECK(agreed.code() == 0);
  CHECK_THAT(agreed.out,
             Contains("# --rdzv-backend=c10d assigns") &&
                 Contains("host 0 of 3") && Contains("WORLD_SIZE=6") &&
                 Contains("# rank 1, local rank 1"));
}

TEST_CASE("a static host starts nothing where only a store answers") {
  const StaticPlace place;
  // Like the ddprun of another job, or torchrun's store.
  const launcher::Fd store = launcher::listen_at(
      launcher::addresses_of("127.0.0.1", place.store_port()).at(0));
  REQUIRE(store);
  const Result result = run_ddprun(
      place.arguments(1, {"echo", "started"}, ",join_timeout=1"), kSecret);
  CHECK(result.code() == 1);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("no ddprun answers at"));
  CHECK(!result.left_something);
}

TEST_CASE("the same command line on a host that is not rank 0's: a hint") {
  // 203.0.113.0/24 belongs to no machine.
  const Result result = run_ddprun({"--nnodes=2",
                                    "--master-addr=203.0.113.9",
                                    "--rdzv-conf=join_timeout=0.2",
                                    "true"},
                                   kSecret);
  CHECK(result.code() == 1);
  CHECK_THAT(result.err,
             Contains("got 1 (") &&
                 Contains("203.0.113.9 is no address of this machine: if it is "
                          "another host's, give --node-rank here"));
}
