// DDP_TRACE: programs that know nothing of it leave a timeline of their steps.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/process_group.h"
#include "ddp/trace.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace step_trace_test {

using nlohmann::json;
using test::read_file;
using test::run_rank_processes;
using Group = c10::intrusive_ptr<c10d::Backend>;
using Model = DistributedDataParallel<torch::nn::LinearImpl>;

Model make_model() {
  return Model(torch::nn::Linear(4, 3));
}

void train(Model& model, int steps) {
  for (int step = 0; step < steps; ++step) {
    model->forward(torch::ones({2, 4})).sum().backward();
  }
}

/// Runs a program on some ranks with DDP_TRACE=`file`.
void run_traced(const std::string& file,
                int size,
                const std::function<void(int rank)>& program) {
  const auto ends = run_rank_processes(size, [&](int rank) {
    ::setenv("DDP_TRACE", file.c_str(), /*overwrite=*/1);
    ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
    init_process_group(ProcessGroupOptions().backend("gloo"));
    program(rank);
  });
  for (const auto& end : ends) {
    CHECK(end.error.empty());
    CHECK(end.exit_code == 0);
    CHECK(end.signal == 0);
  }
}

/// Returns how often each rank has an event of this name, by rank.
std::map<int, int> counts(const json& trace, const std::string& name) {
  std::map<int, int> result;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") == name) {
      ++result[event.at("pid").get<int>()];
    }
  }
  return result;
}

/// Checks that the file has all steps up to `last` of all ranks, no other, and
/// a forward in each.
void check_steps(const std::string& file, int size, int last) {
  const auto trace = json::parse(read_file(file));
  for (int rank = 0; rank < size; ++rank) {
    CAPTURE(rank);
    for (int step = 1; step <= last; ++step) {
      CHECK(counts(trace, "step " + std::to_string(step))[rank] == 1);
    }
    CHECK(counts(trace, "step " + std::to_string(last + 1))[rank] == 0);
    CHECK(counts(trace, "DistributedDataParallel.forward")[rank] == last);
    CHECK(counts(trace, "aten::addmm")[rank] == last);
  }
}

TEST_CASE("DDP_TRACE: the first steps of all ranks", "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "trace.json";
  // The second run replaces the trace of the first one.
  for (int run = 0; run < 2; ++run) {
    run_traced(file, 3, [](int) {
      auto model = make_model();
      train(model, 9);
      destroy_process_group();
    });
    check_steps(file, 3, 6);
  }
  const auto trace = json::parse(read_file(file));
  CHECK(counts(trace, "ddp:all_reduce") ==
        std::map<int, int>{{0, 6}, {1, 6}, {2, 6}});
  // The ranks of a host share a clock and time 0: an all-reduce of one overlaps
  // that of each other.
  std::map<int, std::vector<std::pair<double, double>>> spans;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "ddp:all_reduce") {
      const double begin = event.at("ts");
      CHECK(begin > 0);
      spans[event.at("pid").get<int>()].emplace_back(
          begin, begin + event.at("dur").get<double>());
    }
  }
  for (size_t i = 0; i < 6; ++i) {
    CHECK(spans[0][i].first < spans[1][i].second);
    CHECK(spans[1][i].first < spans[0][i].second);
  }
}

TEST_CASE("DDP_TRACE: a program that ends early", "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "trace.json";
  SECTION("and destroys its wrapper") {
    run_traced(file, 2, [](int) {
      auto model = make_model();
      train(model, 3);
    });
  }
  SECTION("by exit(), without destroy_process_group()") {
    run_traced(file, 2, [](int) {
      auto* model = new Model(make_model());
      train(*model, 3);
      std::exit(0);
    });
  }
  SECTION("on a thread of its own") {
    run_traced(file, 2, [](int) {
      std::optional<Model> model;
      std::thread([&] {
        model.emplace(make_model());
        train(*model, 3);
      }).join();
      train(*model, 3);  // of a thread without a trace
    });
  }
  check_steps(file, 2, 3);
}

TEST_CASE("DDP_TRACE: a rank that wraps its module later", "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "trace.json";
  run_traced(file, 2, [](int rank) {
    const std::vector<Group> alone{new_group({0}), new_group({1})};
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == rank) {
        Model model(torch::nn::Linear(4, 3),
                    DistributedDataParallelOptions().process_group(
                        alone[static_cast<size_t>(rank)]));
        train(model, 3);
      }
      barrier();
    }
  });
  check_steps(file, 2, 3);
}

TEST_CASE("DDP_TRACE: the first wrapper's trainings are the steps",
          "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "trace.json";
  run_traced(file, 2, [](int) {
    auto model = make_model();
    auto other = make_model();
    for (int step = 0; step < 4; ++step) {
      train(model, 1);
      train(other, 1);
      const torch::NoGradGuard evaluation;
      model->forward(torch::ones({2, 4}));
    }
  });
  const auto trace = json::parse(read_file(file));
  const auto each = [](int count) {
    return std::map<int, int>{{0, count}, {1, count}};
  };
  CHECK(counts(trace, "step 4") == each(1));
  CHECK(counts(trace, "step 5").empty());
  CHECK(counts(trace, "DistributedDataParallel.forward") == each(12));
}

TEST_CASE("DDP_TRACE: the program's own profiler goes first", "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "trace.json";
  run_traced(file, 2, [](int) {
    auto model = make_model();
    std::optional<Profiler> profiler(std::in_place);
    train(model, 1);
    profiler.reset();
    train(model, 2);
    profiler.emplace();
    train(model, 3);
    const auto events = profiler->stop();
    TORCH_CHECK(std::count_if(
                    events.begin(), events.end(), [](const TraceEvent& event) {
                      return event.kind == TraceEvent::Kind::scope &&
                             event.name == "DistributedDataParallel.forward";
                    }) == 3);
    train(model, 3);
  });
  check_steps(file, 2, 2);
}

TEST_CASE("DDP_TRACE: without a file, the training goes on", "[step_trace]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "source.cpp";
  std::ofstream(file) << "int main() {}";
  for (const auto& name : {file, folder / "none/trace.json"}) {
    run_traced(name, 2, [](int) {
      auto model = make_model();
      train(model, 9);
      TORCH_CHECK(model->module()->weight.grad().defined());
    });
  }
  CHECK(read_file(file) == "int main() {}");
  CHECK(test::files_in(folder.path()) == std::vector<std::string>{file});
}

}  // namespace step_trace_test
}  // namespace ddp
