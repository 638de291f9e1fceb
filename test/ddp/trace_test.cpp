#include "ddp/trace.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "ddp/exchanges/coded_exchange.h"
#include "ddp/reducer.h"
#include "ddp/trace/detail/timeline.h"
#include "ddp/trace/detail/trace_file.h"
#include "ddp/trace/step_trace.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"
#include "test/support/trace_events.h"

using namespace ddp;
using nlohmann::json;
using Kind = TraceEvent::Kind;
using ddp::test::event;
using ddp::test::flat;
using ddp::test::kMs;
using ddp::test::kTwoSteps;

namespace trace_test {

TEST_CASE("pieces of time are united and intersected", "[trace]") {
  using Numbers = std::vector<int64_t>;
  CHECK(unite({}).empty());
  CHECK(flat(unite({{5, 7}, {1, 3}, {2, 4}, {7, 9}, {6, 6}, {9, 8}})) ==
        Numbers{1, 4, 5, 9});
  CHECK(flat(unite({{1, 9}, {2, 3}})) == Numbers{1, 9});
  const TimeSpans a{{0, 5}, {10, 20}}, b{{3, 12}, {15, 16}, {18, 30}};
  const auto both = intersect(a, b);
  CHECK(flat(both) == Numbers{3, 5, 10, 12, 15, 16, 18, 20});
  CHECK(flat(intersect(b, a)) == flat(both));
  CHECK(intersect(a, {}).empty());
  CHECK(total_length(both) == 7);
}

TEST_CASE("a report of steps divides their time in three", "[trace]") {
  auto events = kTwoSteps;
  events.push_back(event(Kind::scope, "DistributedDataParallel.forward", 0, 8));
  events.push_back(event(Kind::communication, "gather", -5, 2));  // before
  // 0 to 100 is one step, 100 to 130 the other. Computing in [0, 8), [10, 16),
  // [50, 56) and [110, 118). Communication in [0, 2), [12, 19), [111, 113) and
  // [116, 120).
  const TimeSpan steps{0, 130 * kMs};
  CHECK(ddp::detail::step_report(events, steps, 2, at::kCPU) ==
        "A step takes 65.00 ms: 14.00 computing, 2.50 in communication that no "
        "computation hides (5.00 are hidden), 48.50 in neither");
  // A GPU computes later than the host's scopes show.
  CHECK(ddp::detail::step_report(events, steps, 2, at::kCUDA) ==
        "A step takes 65.00 ms: 10.00 computing, 3.50 in communication that no "
        "computation hides (4.00 are hidden), 51.50 in neither");
}

// Returns the events of a trace by name and rank.
std::map<std::string, json> by_name(const json& trace) {
  std::map<std::string, json> result;
  for (const auto& event : trace.at("traceEvents")) {
    result[event.at("name").get<std::string>() + "@" +
           std::to_string(event.at("pid").get<int>())] = event;
  }
  return result;
}

TEST_CASE("the ranks' events become one timeline", "[trace]") {
  TraceEvent a = event(Kind::compute, "a", 2, 5);
  a.track = 7;
  a.span.begin += 1;  // one nanosecond
  const auto b =
      event(Kind::communication, "b \"<x, y>\"\n\\ \u00e9", 3, 4, 12);
  const auto trace = json::parse(
      ddp::detail::timeline({ddp::detail::timeline_items({a}, 0, kMs),
                             ddp::detail::timeline_items({b}, 1, kMs)}));
  CHECK(trace.at("traceEvents").size() == 6);
  const auto events = by_name(trace);
  CHECK(events.at("process_sort_index@1")["args"]["sort_index"] == 1);
  CHECK(events.at("a@0")["ph"] == "X");
  CHECK(events.at("a@0")["cat"] == "compute");
  CHECK(events.at("a@0")["tid"] == 7);
  CHECK(events.at("a@0")["ts"].get<double>() == Approx(1000.001).epsilon(1e-9));
  CHECK(events.at("a@0")["dur"].get<double>() ==
        Approx(2999.999).epsilon(1e-9));
  CHECK(events.at("b \"<x, y>\"\n\\ \u00e9@1")["args"]["elements"] == 12);
  CHECK(json::parse(
            ddp::detail::timeline({ddp::detail::timeline_items({}, 0, 0)}))
            .at("traceEvents")
            .size() == 2);
}

TEST_CASE("a timeline of all ranks begins at their first event", "[trace]") {
  const ddp::test::TemporaryFolder folder;
  const auto file = folder / "timeline.json";
  ddp::test::run_ranks(3, [&](const ddp::test::Group& group) {
    const int rank = group->getRank();
    save_timeline(file,
                  rank == 2 ? std::vector<TraceEvent>{}
                            : std::vector<TraceEvent>{event(
                                  Kind::other, "work", 20 - 10 * rank, 30)},
                  group);
  });
  const auto events = by_name(json::parse(ddp::test::read_file(file)));
  CHECK(events.at("work@1")["ts"] == 0.0);
  CHECK(events.at("work@0")["ts"] == 10000.0);
  CHECK(events.at("process_name@2")["args"]["name"] == "rank 2");
}

TEST_CASE("ranks append to one trace", "[trace]") {
  constexpr int kRanks = 4;
  const ddp::test::TemporaryFolder folder;
  const auto path = folder / "trace.json";
  const ddp::detail::TraceFile file(path, 0);
  CHECK(ddp::test::read_file(path).empty());
  constexpr int64_t kNow = 1'795'654'705'123'456'789;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const int64_t origin = file.begin(kNow - rank);
      file.append(ddp::detail::timeline_items(
          {{Kind::other, "work", {kNow - rank, kNow + 1}}}, rank, origin));
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  const auto trace = json::parse(ddp::test::read_file(path));
  const auto events = by_name(trace);
  const auto base = trace.at("baseTimeNanoseconds").get<int64_t>();
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& work = events.at("work@" + std::to_string(rank));
    CHECK(static_cast<int64_t>(work["ts"].get<double>() * 1000 + 0.5) + base ==
          kNow - rank);
  }
  // A rank that comes later keeps the file; the next run empties it.
  const ddp::detail::TraceFile later(path, 0);
  CHECK(json::parse(ddp::test::read_file(path)) == trace);
  const ddp::detail::TraceFile next(path, std::numeric_limits<int64_t>::max());
  CHECK(ddp::test::read_file(path).empty());
  next.begin(kNow);
  CHECK(json::parse(ddp::test::read_file(path)).at("traceEvents").empty());
}

TEST_CASE("a trace replaces no other file", "[trace]") {
  const ddp::test::TemporaryFolder folder;
  const auto path = folder / "notes.json";
  std::ofstream(path) << "{\"displayTimeUnit\":\"ms\"}";
  CHECK_THROWS_WITH(ddp::detail::TraceFile(path, 0),
                    Catch::Contains(path + ", which is something else"));
  CHECK(ddp::test::read_file(path) == "{\"displayTimeUnit\":\"ms\"}");
  CHECK_THROWS_WITH(ddp::detail::TraceFile("/dev/null", 0),
                    Catch::Contains("something else"));
  CHECK_THROWS_WITH(ddp::detail::TraceFile(folder / "none/trace.json", 0),
                    Catch::Contains("No such file or directory"));
}

TEST_CASE("a trace without its end is not continued", "[trace]") {
  const ddp::test::TemporaryFolder folder;
  const auto path = folder / "trace.json";
  const ddp::detail::TraceFile file(path, 0);
  file.begin(1'795'654'705'123'456'789);
  const auto text = ddp::test::read_file(path);
  std::ofstream(path) << text.substr(0, text.size() - 1);
  CHECK_THROWS_WITH(file.append("{}"), Catch::Contains("its end is missing"));
  std::ofstream(path) << text.substr(0, 20);
  CHECK_THROWS_WITH(file.append("{}"), Catch::Contains("something else"));
}

TEST_CASE("a timeline that cannot be written", "[trace]") {
  const ddp::test::TemporaryFolder folder;
  CHECK_THROWS_WITH(
      save_timeline(folder / "none/timeline.json", {}),
      Catch::Contains("Expected to write " + (folder / "none/timeline.json")));
}

TEST_CASE("the profiler sees scopes and the backward pass", "[trace]") {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  const auto weight = torch::ones({8, 8}, torch::requires_grad());
  Profiler profiler(torch::kCPU);
  torch::Tensor loss;
  {
    RECORD_USER_SCOPE("forward");
    loss = weight.mm(weight).sum();
  }
  {
    RECORD_USER_SCOPE("backward");
    loss.backward();
  }
  const auto events = profiler.stop();
  const auto length_of = [&](Kind kind, const std::string& start) {
    int64_t sum = 0;
    for (const auto& event : events) {
      if (event.kind == kind && event.name.rfind(start, 0) == 0) {
        sum += event.span.length();
      }
    }
    return sum;
  };
  CHECK(length_of(Kind::scope, "forward") > 0);
  CHECK(length_of(Kind::compute, "") > 0);
  CHECK(length_of(Kind::compute, "") <= length_of(Kind::scope, "backward"));
  CHECK(length_of(Kind::communication, "") == 0);
  CHECK(std::count_if(events.begin(), events.end(), [](const auto& event) {
          return event.kind == Kind::other && event.name == "aten::mm";
        }) == 3);
  CHECK_THROWS_WITH(profiler.stop(), Catch::Contains("has been stopped"));
}

TEST_CASE("the profiler sees all of Gloo's collectives", "[trace]") {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  ddp::test::run_ranks(2, [](const ddp::test::Group& group) {
    const auto weight = torch::ones({64}, torch::requires_grad());
    Reducer reducer(
        {{"weight", weight}},
        group,
        DistributedDataParallelOptions().exchange(
            std::make_shared<CodedExchange>(
                group, std::make_shared<NarrowCode>(torch::kBFloat16))));
    std::optional<Profiler> profiler;  // one per process
    if (group->getRank() == 0) {
      profiler.emplace(torch::kCPU);
    }
    {
      RECORD_USER_SCOPE("backward");
      weight.sum().backward();
    }
    if (!profiler) {
      return;
    }
    const auto events = profiler->stop();
    for (const std::string name : {"gloo:all_to_all", "gloo:all_gather"}) {
      TORCH_CHECK(std::count_if(events.begin(),
                                events.end(),
                                [&](const auto& event) {
                                  return event.name == name &&
                                         event.kind == Kind::communication;
                                }) == 1,
                  name);
    }
    // All communication is Gloo's, also the reducer's own, which has no
    // gradients.
    for (const auto& event : events) {
      TORCH_CHECK(event.kind != Kind::communication ||
                  event.name.rfind("gloo:", 0) == 0);
    }
  });
}

TEST_CASE("a profiler that goes makes room for the next", "[trace]") {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  { const Profiler unused(torch::kCPU); }
  Profiler profiler(torch::kCPU);
  CHECK(profiler.stop().empty());
}

}  // namespace trace_test
