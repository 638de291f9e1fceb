#include <ATen/record_function.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include "samples/support/profiler.h"
#include "samples/support/spans.h"
#include "samples/support/step_times.h"
#include "samples/support/timeline.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace samples;
using nlohmann::json;
using Kind = TraceEvent::Kind;

namespace {

constexpr int64_t kMs = 1'000'000;

// Begin, end, begin, end, ...
std::vector<int64_t> flat(const Spans& spans) {
  std::vector<int64_t> result;
  for (const Span& span : spans) {
    result.insert(result.end(), {span.begin, span.end});
  }
  return result;
}

TraceEvent event(Kind kind,
                 const std::string& name,
                 int64_t begin,
                 int64_t end,
                 int64_t elements = 0) {
  return {kind, name, {begin * kMs, end * kMs}, elements};
}

// Two steps: compute in [10, 16) and [110, 118), of 6 and 8 ms.
const std::vector<TraceEvent> kTwoSteps{
    event(Kind::phase, "forward", 0, 10),
    event(Kind::phase, "backward", 10, 20),
    event(Kind::compute, "f", 10, 13),
    event(Kind::compute, "g", 12, 16),  // overlaps f
    event(Kind::communication, "all_reduce", 12, 15, 7),
    event(Kind::communication, "all_reduce", 14, 19, 5),
    event(Kind::phase, "optimizer", 20, 21),
    // What a rank does alone counts nowhere.
    event(Kind::phase, "backward alone", 50, 56),
    event(Kind::compute, "f", 50, 56),
    event(Kind::phase, "forward", 100, 106),
    event(Kind::phase, "backward", 106, 120),
    event(Kind::compute, "f", 110, 118),
    event(Kind::communication, "all_reduce", 116, 120, 5),
    event(Kind::communication, "all_reduce", 111, 113, 7),
    event(Kind::phase, "optimizer", 120, 123),
};

json trace(int64_t pid, const std::string& name) {
  return {{"traceEvents",
           {{{"ph", "M"},
             {"name", "process_name"},
             {"pid", pid},
             {"args", {{"name", "program"}}}},
            {{"ph", "M"}, {"name", "thread_name"}, {"pid", pid}, {"tid", 7}},
            {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", "Spans"}},
            {{"ph", "X"},
             {"name", name},
             {"pid", pid},
             {"tid", 7},
             {"ts", 1.5},
             {"dur", 2.5}},
            {{"ph", "s"}, {"name", "arrow"}, {"pid", pid}, {"id", 3}}}}};
}

}  // namespace

TEST_CASE("pieces of time are united and intersected", "[inspect]") {
  using Numbers = std::vector<int64_t>;
  CHECK(unite({}).empty());
  CHECK(flat(unite({{5, 7}, {1, 3}, {2, 4}, {7, 9}, {6, 6}, {9, 8}})) ==
        Numbers{1, 4, 5, 9});
  CHECK(flat(unite({{1, 9}, {2, 3}})) == Numbers{1, 9});
  const Spans a{{0, 5}, {10, 20}}, b{{3, 12}, {15, 16}, {18, 30}};
  const auto both = intersect(a, b);
  CHECK(flat(both) == Numbers{3, 5, 10, 12, 15, 16, 18, 20});
  CHECK(flat(intersect(b, a)) == flat(both));
  CHECK(intersect(a, {}).empty());
  CHECK(total_length(both) == 7);
}

TEST_CASE("where the time of a step goes", "[inspect]") {
  const auto times = step_times(kTwoSteps, 2);
  CHECK(times.forward == Approx(8));
  CHECK(times.backward == Approx(12));
  CHECK(times.compute == Approx(7));
  // [12, 19) and [111, 113), [116, 120); hidden [12, 16), [111, 113) and
  // [116, 118).
  CHECK(times.communication == Approx(6.5));
  CHECK(times.hidden == Approx(4));
  CHECK(times.exposed == Approx(2.5));
  CHECK(times.optimizer == Approx(2));
  CHECK(phase_time(kTwoSteps, "backward alone", 1) == Approx(6));
  CHECK(phase_time(kTwoSteps, "nothing", 1) == 0);
}

TEST_CASE("the all-reduces of the last step", "[inspect]") {
  const auto found = last_reductions(kTwoSteps);
  REQUIRE(found.size() == 2);
  CHECK(found[0].begin == Approx(5));
  CHECK(found[0].end == Approx(7));
  CHECK(found[0].hidden == Approx(1));
  CHECK(found[0].elements == 7);
  CHECK(found[1].begin == Approx(10));
  CHECK(found[1].end == Approx(14));
  CHECK(found[1].hidden == Approx(0.5));
  CHECK(found[1].elements == 5);
  CHECK(last_reductions({}).empty());
}

TEST_CASE("the ranks' traces become one", "[inspect]") {
  const auto merged = json::parse(
      merge_timelines({trace(4711, "a").dump(), trace(4711, "b").dump()}));
  std::map<std::string, json> by_name;
  for (const auto& event : merged["traceEvents"]) {
    REQUIRE(event["pid"].is_number());
    const auto name = event["name"].get<std::string>();
    by_name[name + "@" + std::to_string(event["pid"].get<int>())] = event;
  }
  CHECK(by_name.at("process_name@0")["args"]["name"] == "rank 0");
  CHECK(by_name.at("process_name@1")["args"]["name"] == "rank 1");
  CHECK(by_name.count("thread_name@1") == 1);
  CHECK(by_name.at("a@0")["ts"] == 1.5);
  CHECK(by_name.at("b@1")["dur"] == 2.5);
  CHECK(by_name.at("arrow@0")["id"] != by_name.at("arrow@1")["id"]);
  CHECK(merged["traceEvents"].size() == 10);

  for (const char* text : {"", "[]", "{}", R"({"traceEvents": 1})", "{\"a"}) {
    CHECK_THROWS_WITH(merge_timelines({trace(1, "a").dump(), text}),
                      Catch::Contains("trace of rank 1"));
  }
}

TEST_CASE("the profiler sees scopes and the backward pass", "[inspect]") {
  silence_profiler();
  const ddp::test::TemporaryFolder folder;
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
  const auto times = step_times(events, 1);
  CHECK(times.forward > 0);
  CHECK(times.compute > 0);
  CHECK(times.compute <= times.backward);
  CHECK(times.communication == 0);

  profiler.save(folder / "trace.json");
  const auto trace = json::parse(ddp::test::read_file(folder / "trace.json"));
  const auto& all = trace["traceEvents"];
  CHECK(std::count_if(all.begin(), all.end(), [](const json& event) {
          return event.value("name", "") == "aten::mm";
        }) == 3);
}
