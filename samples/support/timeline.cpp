#include "samples/support/timeline.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace samples {
namespace {

using nlohmann::json;

json parse(const std::string& text, size_t rank) {
  auto trace = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(trace.is_object() && trace["traceEvents"].is_array(),
              "Expected a trace of rank ",
              rank,
              " in Chrome's JSON format, but got another text.");
  return trace;
}

// Kineto calls the process by its program, and has a row for itself.
bool is_dropped(const json& event) {
  const auto name = event.value("name", "");
  return !event.value("pid", json()).is_number() || name == "process_name" ||
         name == "process_labels" || name == "process_sort_index";
}

json process(const char* name, size_t rank, const json& arguments) {
  return {{"ph", "M"},
          {"name", name},
          {"pid", rank},
          {"tid", 0},
          {"args", arguments}};
}

}  // namespace

std::string merge_timelines(const std::vector<std::string>& ranks) {
  auto events = json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back(process(
        "process_name", rank, {{"name", "rank " + std::to_string(rank)}}));
    events.push_back(
        process("process_sort_index", rank, {{"sort_index", rank}}));
    auto trace = parse(ranks[rank], rank);
    for (auto& event : trace["traceEvents"]) {
      if (is_dropped(event)) {
        continue;
      }
      event["pid"] = rank;
      if (event.contains("id")) {  // of arrows between events
        event["id"] = std::to_string(rank) + "." + event["id"].dump();
      }
      events.push_back(std::move(event));
    }
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}
      .dump(/*indent=*/-1,
            ' ',
            /*ensure_ascii=*/false,
            json::error_handler_t::replace);
}

}  // namespace samples
