// Feeds damaged texts to the parsers of input from users, files and the
// network. Each returns a value or throws a one-line error; sanitizers find the
// rest. To run more of them:
//   DDP_TEST_SECONDS=0 DDP_FUZZ_INPUTS=1000000 DDP_FUZZ_SEED=2
//   launcher_test "damaged *"
// The slowest parsers get a tenth of the inputs.
// ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=1 halves the time.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "ddp/base/cluster/host_list.h"
#include "launcher/base/error.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/machine/cgroup.h"
#include "launcher/machine/topology.h"
#include "launcher/options/options.h"
#include "launcher/options/rendezvous_config.h"
#include "launcher/workers/error_file.h"
#include "launcher/workers/progress/progress_text.h"
#include "test/support/catch.h"
#include "test/support/damage.h"
#include "test/support/number_from.h"

using namespace launcher;
using namespace ddp::test;

namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) {
    throw std::logic_error("expected " + what);
  }
}

void expect_one_line(const std::string& error) {
  expect(!error.empty() && error.size() < 4'000 &&
             error.find('\n') == std::string::npos,
         "an error of one line, but got \"" + error + "\"");
}

/// A command line takes longer to parse than most values.
enum class Cost { small, large };

/// Passes damaged copies of `texts` to `read`, which may throw errors for
/// users: std::invalid_argument or UsageError.
void damage_and_read(const std::vector<std::string>& texts,
                     const std::vector<std::string>& words,
                     const std::function<void(const std::string&)>& read,
                     Cost cost = Cost::small) {
  const uint64_t count =
      number_from("DDP_FUZZ_INPUTS", 2'000) / (cost == Cost::large ? 10 : 1);
  const uint64_t seed = number_from("DDP_FUZZ_SEED", 1);
  Random random(seed);
  size_t refused = 0;
  for (uint64_t i = 0; i < count; ++i) {
    std::string text = any_of(texts, random);
    damage(text, random, words);
    try {
      try {
        read(text);
      } catch (const std::invalid_argument& error) {
        ++refused;
        expect_one_line(UsageError(error.what()).what());
      } catch (const UsageError& error) {
        ++refused;
        expect_one_line(error.what());
      }
    } catch (const std::exception& error) {
      FAIL("input "
           << i << " of seed " << seed << ", "
           << nlohmann::json(text).dump(
                  -1, ' ', true, nlohmann::json::error_handler_t::replace)
           << ": " << error.what());
    }
  }
  CHECK(refused < count * 19 / 20);  // else only the first checks run
}

const std::vector<std::string> kNumbers{"-1",
                                        "0",
                                        "00",
                                        "1e9",
                                        "0x7",
                                        "4294967296",
                                        "99999999999999999999",
                                        "nan",
                                        "\xff",
                                        "\n"};

std::vector<std::string> and_numbers(std::vector<std::string> words) {
  words.insert(words.end(), kNumbers.begin(), kNumbers.end());
  return words;
}

/// Separator: arguments and variables cannot contain NUL.
constexpr char kEnd = '\0';

std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (size_t end; (end = text.find(kEnd, begin)) != std::string::npos;
       begin = end + 1) {
    pieces.push_back(text.substr(begin, end - begin));
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += (text.empty() ? "" : std::string(1, kEnd)) + piece;
  }
  return text;
}

/// Returns a command line for each option of ddprun, with 1 as its value.
std::vector<std::string> lines_of_all_options() {
  std::vector<std::string> lines;
  for (const OptionGroup& group : option_table()) {
    for (const OptionText& option : group.options) {
      const std::string name = option.names.substr(option.names.find("--"));
      lines.push_back(
          joined({name + (option.type.empty() ? "" : "=1"), "./train"}));
    }
  }
  return lines;
}

void parse_and_look(std::vector<std::string> arguments,
                    const Environment& environment) {
  const auto parsed = parse_options(std::move(arguments), environment);
  if (const auto* options = std::get_if<LaunchOptions>(&parsed)) {
    expect(!options->program.empty(), "a program");
    for (const std::string& warning : options->warnings) {
      expect_one_line(warning);
    }
  }
}

/// Lines in which options belong together.
const std::vector<std::string> kCommandLines{
    joined({"--nproc-per-node=4", "--gpus", "0,2,1,3", "./train", "--lr=1"}),
    joined({"--nnodes=2:4",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=[::1]:29400",
            "--rdzv-id=job",
            "--rdzv-conf",
            "join_timeout=60,last_call_timeout=5,is_host=1",
            "--local-addr=host0",
            "-m",
            "train"}),
    joined({"--nnodes=2",
            "--node_rank=1",
            "--master-addr=host0",
            "--master_port=29500",
            "--max-restarts=3",
            "--final-codes=3,4",
            "--hang-timeout=30",
            "./train"}),
    joined({"--log-dir=logs",
            "-r",
            "0:3,1:0",
            "-t3",
            "--local-ranks-filter=0,1",
            "--duplicate-stdout-filters=a,,b,c",
            "--signals-to-handle=SIGTERM,SIGUSR1",
            "--numa-binding=core-complex",
            "--virtual-local-rank",
            "--",
            "prog"}),
    joined({"--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=[fe80::1]:29400",
            "--rdzv-id=job",
            "--rdzv-conf=last_call_timeout=5,is_host=true",
            "--on-preempt=USR1:60",
            "--preempt-code=85",
            "--hang-timeout=600",
            "--output=inherit",
            "--report-json=report.json",
            "./train"}),
    joined({"--standalone", "--nproc=gpu", "--dry-run", "x"}),
    joined({"--doctor", "--nnodes=2", "--master-addr=host0"}),
    joined({"--help"})};

const std::vector<std::string> kVariables{
    joined({"PET_NPROC_PER_NODE=4",
            "PET_NNODES=1:2",
            "PET_RDZV_BACKEND=c10d",
            "PET_RDZV_ENDPOINT=a:1",
            "PET_TEE=3",
            "PET_STRICT=0"}),
    joined({"SLURM_STEP_ID=0",
            "SLURM_PROCID=1",
            "SLURM_NODEID=1",
            "SLURM_LOCALID=0",
            "SLURM_STEP_NUM_NODES=2",
            "SLURM_STEP_NUM_TASKS=2",
            "SLURM_STEP_NODELIST=node[1-2,07]",
            "SLURM_STEP_TASKS_PER_NODE=1(x2)",
            "SLURM_JOB_ID=17"}),
    joined({"OMPI_COMM_WORLD_RANK=1",
            "OMPI_COMM_WORLD_SIZE=2",
            "OMPI_COMM_WORLD_LOCAL_RANK=0",
            "OMPI_COMM_WORLD_LOCAL_SIZE=1",
            "PMIX_SERVER_URI2=x"}),
    joined({"KUBERNETES_SERVICE_HOST=10.0.0.1",
            "MASTER_ADDR=job-master-0",
            "MASTER_PORT=23456",
            "WORLD_SIZE=2",
            "RANK=1"})};

}  // namespace

TEST_CASE("damaged command lines") {
  std::vector<std::string> lines = lines_of_all_options();
  CHECK(lines.size() > 30);
  lines.insert(lines.end(), kCommandLines.begin(), kCommandLines.end());
  lines.insert(lines.end(), kCommandLines.begin(), kCommandLines.end());
  damage_and_read(
      lines,
      and_numbers({"--", "-", "=", ",", ":", std::string(1, kEnd), "--n"}),
      [](const std::string& text) { parse_and_look(pieces_of(text), {}); },
      Cost::large);
}

TEST_CASE("damaged variables of torchrun and of schedulers") {
  damage_and_read(
      kVariables,
      and_numbers({"=", "[", "]", ",", std::string(1, kEnd), "PET_"}),
      [](const std::string& text) {
        Environment environment;
        for (const std::string& piece : pieces_of(text)) {
          const size_t at = piece.find('=');
          environment[piece.substr(0, at)] =
              at == std::string::npos ? "" : piece.substr(at + 1);
        }
        parse_and_look({"./train"}, environment);
      },
      Cost::large);
}

TEST_CASE("damaged settings of a rendezvous") {
  damage_and_read({"join_timeout=60, keep_alive_interval = 5,x=",
                   "last_call_timeout=30,is_host=true,meeting_port=0"},
                  and_numbers({"=", ",", " "}),
                  [](const std::string& text) { parse_settings(text); });
}

TEST_CASE("damaged lists of hosts") {
  using namespace ddp::detail;
  damage_and_read(
      {"node[1-3,07],gpu-[01-02]x[0-1]", "a,b,c", "n[001-100]", "x"},
      and_numbers({"[", "]", ",", "-", "][", "1-9999999"}),
      [](const std::string& text) {
        const auto hosts = expand_host_list(text);
        expect(!hosts.empty() && hosts.size() <= kMostHosts,
               "a bounded number of hosts");
        std::string written;
        for (const std::string& host : hosts) {
          expect(!host.empty(), "names of hosts");
          written += (written.empty() ? "" : ",") + host;
        }
        expect(expand_host_list(written) == hosts,
               "the same from the list written out");
      });
}

TEST_CASE("damaged counts of tasks") {
  using namespace ddp::detail;
  damage_and_read({"4(x2),1", "8", "2(x3),2(x1)"},
                  and_numbers({"(", ")", "(x", ",", "(x99999999)"}),
                  [](const std::string& text) {
                    const auto counts = expand_counts(text);
                    expect(counts.size() <= kMostHosts,
                           "a bounded number of counts");
                  });
}

TEST_CASE("damaged error files") {
  damage_and_read(
      {R"({"message": "it failed"})",
       R"({"message": {"message": "it failed", "extraInfo": {"py_callstack":
           "Traceback", "timestamp": "1700000000"}, "errorCode": 1}})",
       R"([{"message": [1, 2.5e300, null, "\ud83d\ude00"]}])"},
      and_numbers({"{", "}", "[", "\"", "\\u", "\\", "{\"message\":", ","}),
      [](const std::string& text) {
        const std::string message = message_of_error_file(text);
        const auto file = handed_on(text, {.signal = 9});
        expect(file.has_value() == !message.empty(),
               "what has a message to be handed on");
        if (file) {
          expect(nlohmann::json::accept(*file), "JSON");
          expect(!message_of_error_file(*file).empty(), "the message in it");
        }
      });
}

TEST_CASE("damaged messages between ddpruns") {
  Hello hello;
  hello.token = "s\"ecret\n";
  hello.terms = {
      .run_id = "job 7", .least_hosts = 2, .most_hosts = 4, .max_restarts = 3};
  hello.id = "17-4";
  hello.host = "node";
  hello.wanted_rank = 3;
  HostState state;
  state.number = int64_t{1} << 40;
  state.store = {"fe80::1", 29500};
  HostState failed = state;
  failed.outcome = HostFailed{11, {.signal = 9}};
  JobClosed ordered{7, "rank 3 failed"};
  ordered.first = FirstFailure{3, "b"};
  World world{.generation = 3, .host_count = 2, .world_size = 12};
  world.role = RoleRanks{1, 7};
  damage_and_read(
      {encode(hello),
       encode(state),
       encode(failed),
       encode(Goodbye{}),
       encode(WorldFormed{world}),
       encode(Broken{4, {WorldBroken::Change::left, "b"}}),
       encode(ordered),
       encode(Noted{}),
       encode(RendezvousLost{"no"})},
      and_numbers({"\"", "{", "}", "[", ",", "null", "true", "1.5"}),
      [](const std::string& text) {
        if (const auto message = decode(text)) {
          const std::string again = encode(*message);
          expect(again.size() <= kLongestMessage, "a bounded message");
          const auto same = decode(again);
          expect(same && encode(*same) == again, "the same message again");
        }
      });
}

TEST_CASE("damaged progress of workers") {
  damage_and_read(
      {"step 12 limit=600 collectives=7 waits=1 pass=12 beat=9 pid=123",
       "evaluating limit=3x\n",
       "limit=0.5"},
      and_numbers({"=", " ", "limit=", "x", "collectives="}),
      [](const std::string& text) {
        const auto progress = parse_progress(text);
        expect(progress.pid >= 0, "a process");
        expect(!progress.limit || progress.limit->times >= 1, "a limit");
        const std::string shown = describe(progress);
        expect(std::all_of(shown.begin(),
                           shown.end(),
                           [](char c) { return c >= ' ' && c <= '~'; }),
               "text that can be shown");
      });
}

TEST_CASE("damaged lists of CPUs") {
  damage_and_read(
      {"0-3,8", "0", "1,3,5-7,64-127"},
      and_numbers({"-", ",", "0-99999999", "7-3"}),
      [](const std::string& text) {
        const auto cpus = parse_cpu_list(text);
        const std::set<int> distinct(cpus.begin(), cpus.end());
        const auto again =
            parse_cpu_list(cpu_list({distinct.begin(), distinct.end()}));
        expect(std::set<int>(again.begin(), again.end()) == distinct,
               "the same list again");
      });
}

TEST_CASE("damaged counts of kills for want of memory") {
  damage_and_read(
      {"low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
       "oom_kill 0"},
      and_numbers({" ", "\n", "oom_kill "}),
      [](const std::string& text) {
        const auto kills = oom_kills_of(text);
        expect(!kills || *kills >= 0, "a count");
      });
}
