#include "launcher/options/options.h"

#include <csignal>

#include "launcher/base/error.h"
#include "test/launcher/rendezvous_of.h"
#include "test/support/catch.h"

using Catch::Contains;
using Catch::StartsWith;
using launcher::CoordinatedConfig;
using launcher::Environment;
using launcher::LaunchOptions;
using launcher::parse_options;
using launcher::ProgramKind;
using launcher::UsageError;
using Kind = launcher::WorkerCount::Kind;
using Arguments = std::vector<std::string>;
using namespace launcher::test;
using namespace std::chrono_literals;

namespace {

LaunchOptions parse(Arguments arguments, const Environment& environment = {}) {
  return std::get<LaunchOptions>(
      parse_options(std::move(arguments), environment));
}

/// Returns the error line for the user, or "" without an error.
std::string error_of(Arguments arguments, const Environment& environment = {}) {
  try {
    parse_options(std::move(arguments), environment);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("defaults are torchrun's") {
  const auto options = parse({"./train"});
  CHECK(!options.worker_count);
  CHECK(hosts_of(options) == 1);
  CHECK(rank_of(options) == 0);
  CHECK(store_of(options).host == "127.0.0.1");
  CHECK(store_of(options).port == 0);
  CHECK(options.max_restarts == 0);
  CHECK(options.grace_period == std::chrono::seconds(30));
  CHECK(options.role == "default");
  CHECK(options.signals == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  CHECK(options.redirects.empty());
  CHECK(options.program_kind == ProgramKind::by_name);
  CHECK(!options.dry_run);
}

TEST_CASE("both spellings of an option mean the same") {
  for (const auto& arguments :
       {Arguments{"--nproc-per-node=4", "p"},
        Arguments{"--nproc_per_node=4", "p"},
        Arguments{"--nproc_per_node", "4", "p"},
        Arguments{"--nproc-per-node=2", "--nproc_per_node=4", "p"}}) {
    CHECK(parse(arguments).worker_count->number == 4);
  }
  CHECK(parse({"--max_restarts=3", "p"}).max_restarts == 3);
  CHECK(parse({"--grace_period=0", "p"}).grace_period == 0s);
  CHECK(parse({"--signals_to_handle=SIGTERM,SIGUSR1,SIGUSR2", "p"}).signals ==
        std::vector<int>{SIGTERM, SIGUSR1, SIGUSR2});
  CHECK(store_of(parse({"--node_rank=1",
                        "--nnodes=2",
                        "--master_addr=h",
                        "--master_port=1234",
                        "p"}))
            .port == 1234);
}

TEST_CASE("worker counts by name") {
  CHECK(parse({"--nproc-per-node=auto", "p"}).worker_count->kind ==
        Kind::automatic);
  CHECK(parse({"--nproc-per-node=gpu", "p"}).worker_count->kind == Kind::gpu);
  CHECK(parse({"--nproc-per-node=cpu", "p"}).worker_count->kind == Kind::cpu);
}

TEST_CASE("what follows the program is the program's") {
  const Arguments rest{
      "./train", "--nproc-per-node=9", "-h", "--", "-r", "x y"};
  Arguments arguments{"--nproc-per-node", "2"};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  CHECK(parse(arguments).program == rest);
  CHECK(parse(arguments).worker_count->number == 2);

  arguments.insert(arguments.begin() + 2, "--");
  CHECK(parse(arguments).program == rest);
  CHECK(parse({"--", "--odd-name"}).program == Arguments{"--odd-name"});
}

TEST_CASE("the first -- is dropped before and after the program's name") {
  CHECK(parse({"p", "--", "--r=16"}).program == Arguments{"p", "--r=16"});
  CHECK(parse({"p", "--", "--", "a"}).program == Arguments{"p", "--", "a"});
  CHECK(parse({"p", "a", "--", "b"}).program == Arguments{"p", "a", "--", "b"});
  CHECK(parse({"--", "p", "--", "a"}).program == Arguments{"p", "--", "a"});
  CHECK(parse({"-m", "p", "--", "a"}).program == Arguments{"p", "a"});
}

TEST_CASE("streams of ranks") {
  const auto options =
      parse({"-r", "0:3,12:1", "--tee=2", "--local-ranks-filter=1,12", "p"});
  CHECK(options.redirects.at(0).out);
  CHECK(options.redirects.at(0).err);
  CHECK(options.redirects.at(12).out);
  CHECK(!options.redirects.at(12).err);
  CHECK(!options.redirects.at(1).out);
  CHECK(!options.tee.at(7).out);
  CHECK(options.tee.at(7).err);
  CHECK(*options.shown_ranks == std::vector<int>{1, 12});
  CHECK(parse({"-r3", "p"}).redirects.at(5).err);
  CHECK(parse({"-t", "0", "p"}).tee.empty());
}

TEST_CASE("master by address, by endpoint, or on this host") {
  CHECK(store_of(parse({"--nnodes=2", "--master-addr=h", "p"})).port == 29500);
  const auto endpoint =
      store_of(parse({"--nnodes=2", "--rdzv-endpoint=[::1]:7000", "p"}));
  CHECK(endpoint.host == "::1");
  CHECK(endpoint.port == 7000);
  CHECK(store_of(parse({"--nnodes=2", "--rdzv-endpoint=host7", "p"})).host ==
        "host7");
  const auto standalone = store_of(parse({"--standalone",
                                          "--master-addr=other",
                                          "--master-port=29500",
                                          "--rdzv-backend=etcd",
                                          "p"}));
  CHECK(standalone.host == "127.0.0.1");
  CHECK(standalone.port == 0);
  for (const std::string wrong : {"--master-port=x",
                                  "--master-port=70000",
                                  "--rdzv-endpoint=h:x",
                                  "--rdzv-conf=meeting_port=x",
                                  "--rdzv-backend=etcd"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse({wrong, "p"}), UsageError);
    CHECK(store_of(parse({wrong, "--standalone", "p"})).port == 0);
    CHECK(store_of(parse({wrong, "p"}, {{"PET_STANDALONE", "1"}})).port == 0);
  }
  CHECK(
      store_of(parse({"--standalone", "p"}, {{"PET_MASTER_PORT", "x"}})).port ==
      0);
  CHECK(store_of(parse({"--master-port=0", "p"})).port == 0);
}

TEST_CASE("static hosts meet beside rank 0's store") {
  const auto plain =
      parse({"--nnodes=2", "--node-rank=1", "--master-addr=h", "p"});
  const auto& config = std::get<CoordinatedConfig>(plain.rendezvous);
  CHECK(config.coordinator.endpoint.host == "h");
  CHECK(config.coordinator.endpoint.port == 29600);
  CHECK(config.store->host == "h");
  CHECK(config.store->port == 29500);
  CHECK(config.coordinator.host_option == "--master-addr");
  CHECK(config.coordinator.is_here == false);
  CHECK(config.wanted_rank == 1);
  CHECK(config.terms.least_hosts == 2);
  CHECK(config.terms.most_hosts == 2);
  CHECK(config.terms.ranks_are_fixed);
  CHECK(config.timeouts.silence() == 15s);
  const auto chosen = parse({"--nnodes=3",
                             "--rdzv-endpoint=h:65500",
                             "--rdzv-conf=keep_alive_interval=1",
                             "p"});
  const auto& first = std::get<CoordinatedConfig>(chosen.rendezvous);
  CHECK(first.coordinator.endpoint.port == 65400);
  CHECK(first.coordinator.is_here == true);
  CHECK(first.timeouts.silence() == 3s);
  const auto port = [](const std::string& value) {
    return parse({"--nnodes=2",
                  "--master-addr=h",
                  "--rdzv-conf=meeting_port=" + value,
                  "p"});
  };
  CHECK(std::get<CoordinatedConfig>(port("7000").rendezvous)
            .coordinator.endpoint.port == 7000);
  CHECK(!has_coordinator(port("0")));
  CHECK(hosts_of(port("0")) == 2);
  CHECK(!has_coordinator(parse({"--nnodes=1", "--master-addr=h", "p"})));
}

TEST_CASE("hosts that meet: torchrun's c10d command line") {
  const auto plain =
      parse({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "p"});
  const auto& config = std::get<CoordinatedConfig>(plain.rendezvous);
  CHECK(hosts_of(plain) == 2);
  CHECK(config.coordinator.endpoint.host == "h");
  CHECK(config.coordinator.endpoint.port == 29400);
  CHECK(config.terms.least_hosts == 2);
  CHECK(!config.coordinator.is_here);
  CHECK(!config.wanted_rank);
  CHECK(config.timeouts.join == 600s);
  CHECK(config.timeouts.last_call == 30s);
  CHECK(config.timeouts.silence() == 15s);
  const auto elastic = parse({"--nnodes=1:4",
                              "--rdzv-backend=c10d",
                              "--rdzv-endpoint=[::1]:7000",
                              "--node-rank=3",
                              "--local-addr=ib0",
                              "--rdzv-conf=join_timeout=7,last_call_timeout=0,"
                              "keep_alive_interval=0.5,"
                              "keep_alive_max_attempt=4,is_host=1,timeout=9",
                              "p"});
  const auto& range = std::get<CoordinatedConfig>(elastic.rendezvous);
  CHECK(hosts_of(elastic) == 4);
  CHECK(range.coordinator.endpoint.port == 7000);
  CHECK(range.terms.least_hosts == 1);
  CHECK(range.terms.most_hosts == 4);
  CHECK(range.coordinator.is_here == true);
  CHECK(range.wanted_rank == 3);
  CHECK(range.local_address == "ib0");
  CHECK(range.timeouts.join == 7s);
  CHECK(range.timeouts.last_call == 0s);
  CHECK(range.timeouts.silence() == 2s);
  CHECK(hosts_of(parse({"--nnodes=2:20",
                        "--rdzv-backend=c10d",
                        "--rdzv-endpoint=h",
                        "p"})) == 20);
  // A single host needs no rendezvous.
  CHECK(!has_coordinator(parse({"--rdzv-backend=c10d", "p"})));
}

TEST_CASE("a torchrun command line is understood") {
  const auto options = parse({"--nnodes=1:1",
                              "--nproc_per_node=2",
                              "--rdzv_backend=c10d",
                              "--rdzv_endpoint=localhost:0",
                              "--rdzv_id=job7",
                              "--rdzv_conf=timeout=900",
                              "--monitor_interval=0.5",
                              "--start_method=spawn",
                              "--local_addr=localhost",
                              "--role=trainer",
                              "--no-python",
                              "./train"});
  CHECK(options.run_id == "job7");
  CHECK(options.role == "trainer");
  CHECK(store_of(options).host == "127.0.0.1");
  CHECK(options.program_kind == ProgramKind::executable);
  CHECK(parse({"-m", "package.main"}).program_kind == ProgramKind::module);
  CHECK(parse({"--run-path", "main"}).program_kind == ProgramKind::python);
}

TEST_CASE("an empty value is a value, and takes no other argument's place") {
  // As with a variable that is not set: --rdzv-id=$UNSET.
  const auto options = parse({"--rdzv-id=",
                              "--role=",
                              "--log-dir=",
                              "--rdzv-endpoint=",
                              "--rdzv-backend=",
                              "--rdzv-conf=",
                              "--local-ranks-filter=",
                              "--nproc-per-node=2",
                              "train",
                              "--x=",
                              "-r="});
  CHECK(options.run_id.empty());
  CHECK(options.role.empty());
  CHECK(options.log_dir.empty());
  CHECK(store_of(options).host == "127.0.0.1");
  CHECK(!options.shown_ranks);
  CHECK(options.worker_count->number == 2);
  CHECK(options.program == Arguments{"train", "--x=", "-r="});
  CHECK(parse({"--rdzv_id", "", "--role", "r", "p"}).role == "r");
  CHECK(parse({"--rdzv-id=a", "--rdzv-id=", "p"}).run_id.empty());
  CHECK(parse({"--rdzv-id=a=", "p"}).run_id == "a=");
  CHECK(parse({"--rdzv-id=A=", "p", ""}).program == Arguments{"p", ""});
  // Short options, as argparse reads them.
  CHECK(parse({"-r=3", "-t=0:1", "p"}).redirects.at(0).err);
}

TEST_CASE("PET_ variables are defaults that the command line beats") {
  const Environment variables{{"PET_NPROC_PER_NODE", "3"},
                              {"PET_STANDALONE", "0"},
                              {"PET_DRY_RUN", "1"},
                              {"PET_ROLE", ""}};
  CHECK(parse({"p"}, variables).worker_count->number == 3);
  CHECK(parse({"--nproc_per_node=5", "p"}, variables).worker_count->number ==
        5);
  CHECK(store_of(parse({"--master-port=1234", "p"}, variables)).port == 1234);
  CHECK(parse({"p"}, variables).dry_run);
  CHECK(!parse({"p"}).dry_run);
  CHECK(parse({"p"}, variables).role == "default");  // empty: as if not set
  CHECK(store_of(parse({"--standalone", "--master-port=1", "p"}, variables))
            .port == 0);
  CHECK_THAT(error_of({"p"}, {{"PET_MAX_RESTARTS", "many"}}),
             StartsWith("PET_MAX_RESTARTS: expected an integer"));
  CHECK_THAT(error_of({"p"}, {{"PET_NNODES", "two"}}),
             StartsWith("PET_NNODES: expected a number of hosts"));
  CHECK(error_of({"--max-restarts=1", "p"}, {{"PET_MAX_RESTARTS", "many"}})
            .empty());
}

TEST_CASE("blanks around values, as from a file or a list with spaces") {
  CHECK(parse({"p"}, {{"PET_NPROC_PER_NODE", "2\n"}}).worker_count->number ==
        2);
  CHECK(parse({"--nproc-per-node= gpu", "p"}).worker_count->kind == Kind::gpu);
  CHECK(parse({"--local-ranks-filter", "0, 1", "p"}).shown_ranks ==
        std::vector<int>{0, 1});
  CHECK(parse({"--signals-to-handle=SIGTERM, SIGUSR1 ", "p"}).signals ==
        std::vector<int>{SIGTERM, SIGUSR1});
  CHECK(hosts_of(parse({"--nnodes", "1 : 1", "p"})) == 1);
  CHECK(parse({"--gpus=0, 1", "p"}).gpus == Arguments{"0", "1"});
  CHECK(parse({"--tee=0: 3, 1:1 ", "p"}).tee.at(0).err);
  CHECK(parse({"--grace-period= 2\n", "p"}).grace_period == 2s);
  CHECK(parse({"--output=inherit\n", "p"}).output == launcher::Output::inherit);
  CHECK(
      parse(
          {"--nnodes=2", "--rdzv-backend=c10d ", "--rdzv-endpoint= h:7\n", "p"})
          .program == Arguments{"p"});
  CHECK_THAT(error_of({"--nproc-per-node= 2 3 ", "p"}),
             Contains("but got \" 2 3 \""));
  CHECK_THAT(error_of({"--gpus=0, ,1", "p"}), Contains("--gpus: expected"));
}

TEST_CASE("a job whose options are all variables") {
  Environment variables{{"PET_NNODES", "1"},
                        {"PET_NPROC_PER_NODE", "4"},
                        {"PET_RDZV_BACKEND", "c10d"},
                        {"PET_RDZV_ENDPOINT", "keys:2379"},
                        {"PET_RDZV_ID", "job7"},
                        {"PET_MONITOR_INTERVAL", "1"},
                        {"PET_START_METHOD", "spawn"},
                        {"PET_NO_PYTHON", "1"},
                        {"PET_MODULE", "0"}};
  const auto options = parse({"./train"}, variables);
  CHECK(options.worker_count->number == 4);
  CHECK(hosts_of(options) == 1);
  CHECK(options.run_id == "job7");
  CHECK(options.program_kind == ProgramKind::executable);
  variables["PET_MODULE"] = "1";
  CHECK_THAT(error_of({"./train"}, variables),
             Contains("--module: expected to be without --no-python"));
  variables["PET_MODULE"] = "0";
  variables["PET_RDZV_BACKEND"] = "zeus";
  CHECK_THAT(error_of({"./train"}, variables),
             Contains("--rdzv-backend: expected one of"));
}

TEST_CASE("every wrong value is one line that names the option") {
  struct Row {
    Arguments arguments;
    std::string text;
  };
  const Row rows[] = {
      {{"--nproc-per-node=0", "p"},
       "--nproc-per-node: expected a number of workers above 0, auto, gpu or "
       "cpu, but got \"0\""},
      {{"--nproc-per-node=abc", "p"}, "but got \"abc\""},
      {{"--nproc-per-node=xpu", "p"}, "but got \"xpu\""},
      {{"--nproc-per-node=-1", "p"}, "but got \"-1\""},
      {{"--nproc-per-node=2x", "p"}, "but got \"2x\""},
      {{"--nproc-per-node=", "p"},
       "--nproc-per-node: expected a number of "
       "workers above 0, auto, gpu or cpu, but "
       "got \"\""},
      {{"--nnodes=", "p"}, "--nnodes: expected a number of hosts"},
      {{"--node-rank=", "p"}, "--node-rank: expected an integer"},
      {{"--master-port=", "p"}, "--master-port: expected an integer"},
      {{"--master-addr=", "p"}, "--master-addr: expected the name"},
      {{"--gpus=", "p"}, "--gpus: expected items"},
      {{"--tee=", "p"}, "--tee: expected 0 (none)"},
      {{"-r=", "p"}, "but got \"\""},
      {{"-r", "", "p"}, "but got \"\""},
      {{"--standalone=", "p"}, "--standalone"},
      {{"--bogus=", "p"}, "unknown option --bogus=; "},
      {{"--nproc-per-node"}, "--nproc-per-node"},
      {{"--bogus", "p"}, "unknown option --bogus"},
      {{"--nproc-per-node=2", "-x", "p"}, "unknown option -x"},
      {{}, "expected a program to start"},
      {{"--nproc-per-node=2"}, "expected a program to start"},
      {{"--"}, "expected a program to start"},
      {{"--nnodes=0", "p"}, "--nnodes: expected a number of hosts"},
      {{"--nnodes=1:2:3", "p"}, "--nnodes: expected a number of hosts"},
      {{"--nnodes=1:4", "p"},
       "--nnodes: expected a fixed number of static hosts"},
      {{"--rdzv-conf=meeting_port=65536", "p"},
       "meeting_port: expected an integer from 0 to 65535"},
      {{"--nnodes=2",
        "--master-addr=h",
        "--master-port=7",
        "--rdzv-conf=meeting_port=7",
        "p"},
       "--rdzv-conf: expected a meeting_port other than 7"},
      {{"--nnodes=2", "p"}, "--master-addr: expected the name of the host"},
      {{"--nnodes=2", "--master-addr=h", "--node-rank=2", "p"},
       "--node-rank: expected a rank below --nnodes (2), but got 2"},
      {{"--node-rank=-1", "p"}, "--node-rank: expected an integer"},
      {{"--master-port=65536", "p"}, "--master-port: expected an integer"},
      {{"--rdzv-endpoint=a:b:c:99999", "p"}, ""},  // parsed as an IPv6 address
      {{"--rdzv-endpoint=host:99999", "p"}, "--rdzv-endpoint: expected host"},
      {{"--rdzv-endpoint=[::1", "p"}, "--rdzv-endpoint: expected host"},
      {{"--rdzv-endpoint=:1", "p"}, "--rdzv-endpoint: expected host"},
      {{"--rdzv-endpoint=a,b", "p"}, "--rdzv-endpoint: expected host"},
      {{"--rdzv-backend=zeus", "p"},
       "--rdzv-backend: expected one of static|c10d, but got \"zeus\""},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=h", "p"},
       "--rdzv-backend: expected one of static|c10d, but got \"etcd\"; give "
       "--rdzv-backend=c10d"},
      {{"--rdzv-backend=etcd-v2",
        "--nnodes=2",
        "--rdzv-endpoint=h:2379",
        "--rdzv-id=a",
        "--rdzv-conf=protocol=https",
        "p"},
       "--rdzv-backend: expected one of static|c10d, but got \"etcd-v2\"; give "
       "--rdzv-backend=c10d"},
      {{"--rdzv-backend=c10d", "--nnodes=2", "--master-addr=h", "p"},
       "--rdzv-endpoint: expected the host where the others meet"},
      {{"--rdzv-conf=keep_alive_max_attempt=0", "p"},
       "--rdzv-conf: keep_alive_max_attempt: expected"},
      {{"--rdzv-conf=is_host=maybe", "p"}, "--rdzv-conf: is_host: expected"},
      {{"--standalone", "--nnodes=2", "p"}, "--standalone: expected one host"},
      {{"--gpus=0,,1", "p"}, "--gpus: expected items"},
      {{"--gpus=0,0", "p"}, "--gpus: expected items"},
      {{"--max-restarts=-1", "p"}, "--max-restarts: expected an integer"},
      {{"--grace-period=-1", "p"}, "--grace-period: expected seconds"},
      {{"--grace-period=nan", "p"}, "--grace-period: expected seconds"},
      {{"--grace-period=1e99", "p"}, "--grace-period: expected seconds"},
      {{"-r", "4", "p"}, "--redirects: expected 0 (none)"},
      {{"-r", "0:1,", "p"}, "--redirects: expected"},
      {{"-r", "11", "p"}, "--redirects: expected"},
      {{"-r", "0:1,1", "p"}, "--redirects: expected"},
      {{"-r", "1,0:1", "p"}, "--redirects: expected"},
      {{"-r", "0:1,0:2", "p"}, "--redirects: expected"},
      {{"-t", "x", "p"}, "--tee: expected"},
      {{"--local-ranks-filter=a", "p"}, "--local-ranks-filter: expected"},
      {{"--signals-to-handle=SIGKILL", "p"}, "--signals-to-handle: expected"},
      {{"--signals-to-handle=SIGNONE", "p"}, "--signals-to-handle: expected"},
      {{"-m", "--no-python", "p"}, "expected to be without --no-python"},
      {{"--monitor-interval=abc", "p"},
       "--monitor-interval: expected seconds above 0, at most a year, but got "
       "\"abc\""},
      {{"--monitor-interval=0", "p"}, "--monitor-interval: expected seconds"},
      {{"--monitor-interval=", "p"}, "--monitor-interval: expected seconds"},
      {{"--start-method=thread", "p"},
       "--start-method: expected one of spawn, fork, forkserver, but got "
       "\"thread\""},
      {{"--rdzv-conf=timeout", "p"}, "--rdzv-conf: expected key=value pairs"},
      {{"--rdzv-conf=a=1,,b=2", "p"}, "--rdzv-conf: expected key=value pairs"},
      {{"--rdzv-conf==1", "p"}, "--rdzv-conf: expected key=value pairs"},
      {{"--rdzv-conf=a=", "p"}, "--rdzv-conf: expected key=value pairs"},
      {{"--standalone=maybe", "p"}, "standalone"},
  };
  for (const Row& row : rows) {
    const std::string error = error_of(row.arguments);
    CAPTURE(row.arguments, error);
    CHECK_THAT(error, Contains(row.text));
    CHECK(error.empty() == row.text.empty());
    CHECK(error.find('\n') == std::string::npos);
  }
}

TEST_CASE("what workers read and write") {
  CHECK(parse({"p"}).output == launcher::Output::lines);
  CHECK(parse({"--output=lines", "p"}).output == launcher::Output::lines);
  CHECK(parse({"p"}, {{"PET_OUTPUT", "inherit"}}).output ==
        launcher::Output::inherit);
  CHECK_THAT(error_of({"--output=raw", "p"}), Contains("--output: expected"));
  CHECK_THAT(error_of({"--output=inherit", "--tee=1", "p"}),
             Contains("--tee: expected to be without --output=inherit"));
  CHECK(error_of({"--output=inherit", "-r=1", "p"}).empty());
}
