#include "samples/support/trace.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "ddp/exchanges/quantized_exchange.h"
#include "ddp/reducer.h"
#include "test/samples/trace_events.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

using namespace samples;
using nlohmann::json;
using Kind = TraceEvent::Kind;

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

// Returns the events of a trace by name and rank.
std::map<std::string, json> by_name(const json& trace) {
  std::map<std::string, json> result;
  for (const auto& event : trace.at("traceEvents")) {
    result[event.at("name").get<std::string>() + "@" +
           std::to_string(event.at("pid").get<int>())] = event;
  }
  return result;
}

// Returns the timeline of three ranks with these events.
json timeline_of(const std::vector<std::vector<TraceEvent>>& events) {
  const ddp::test::TemporaryFolder folder;
  const auto file = folder / "timeline.json";
  ddp::test::run_ranks(3, [&](const ddp::test::Group& group) {
    save_timeline(file, events[static_cast<size_t>(group->getRank())], group);
  });
  return json::parse(ddp::test::read_file(file));
}

TEST_CASE("the ranks' events become one timeline", "[trace]") {
  TraceEvent a = event(Kind::compute, "a", 2, 5);
  a.track = 7;
  a.span.begin += 1;  // one nanosecond
  const auto b = event(Kind::communication, "b \"<x, y>\" \\ \u00e9", 1, 4, 12);
  const auto trace = timeline_of({{a}, {b}, {}});
  CHECK(trace.at("traceEvents").size() == 5);
  const auto events = by_name(trace);
  CHECK(events.at("a@0")["ph"] == "X");
  CHECK(events.at("a@0")["cat"] == "compute");
  CHECK(events.at("a@0")["tid"] == 7);
  CHECK(events.at("a@0")["ts"].get<double>() == Approx(1000.001).epsilon(1e-9));
  CHECK(events.at("a@0")["dur"].get<double>() ==
        Approx(2999.999).epsilon(1e-9));
  CHECK(events.at("b \"<x, y>\" \\ \u00e9@1")["args"]["elements"] == 12);
  CHECK(events.at("process_name@2")["args"]["name"] == "rank 2");
}

TEST_CASE("a timeline of all ranks begins at their first event", "[trace]") {
  const auto events = by_name(timeline_of({{event(Kind::other, "work", 20, 30)},
                                           {event(Kind::other, "work", 10, 30)},
                                           {}}));
  CHECK(events.at("work@1")["ts"] == 0.0);
  CHECK(events.at("work@0")["ts"] == 10000.0);
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
    ddp::Reducer reducer({{"weight", weight}},
                         group,
                         ddp::DistributedDataParallelOptions().exchange(
                             std::make_shared<ddp::QuantizedExchange>(group)));
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
