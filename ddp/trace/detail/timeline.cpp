#include "ddp/trace/detail/timeline.h"

#include <cstdio>
#include <set>

#include "ddp/base/text/json_string.h"

namespace ddp::detail {
namespace {

// Returns metadata of a rank, which a viewer shows as a process, or of one of
// its tracks.
std::string metadata(const char* what,
                     int rank,
                     const std::string& argument,
                     int64_t track = 0) {
  return R"({"ph":"M","name":")" + std::string(what) + R"(","pid":)" +
         std::to_string(rank) + R"(,"tid":)" + std::to_string(track) +
         R"(,"args":{)" + argument + "}}";
}

// Threads and GPU streams keep the names that the viewer gives them.
std::string name_of(int64_t track) {
  if (track == kStepTrack) {
    return "steps";
  }
  return track < kFirstSharedTrack
             ? ""
             : "sums in shared memory " +
                   std::to_string(track - kFirstSharedTrack + 1);
}

const char* category(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::scope:
      return "scope";
    case TraceEvent::Kind::compute:
      return "compute";
    case TraceEvent::Kind::communication:
      return "communication";
    case TraceEvent::Kind::other:
      return "other";
  }
  return "other";
}

// Formats microseconds with three decimals.
std::string microseconds(int64_t nanoseconds) {
  char text[32];
  std::snprintf(text,
                sizeof text,
                "%lld.%03lld",
                static_cast<long long>(nanoseconds / 1000),
                static_cast<long long>(nanoseconds % 1000));
  return text;
}

}  // namespace

std::string timeline_items(const std::vector<TraceEvent>& events,
                           int rank,
                           int64_t origin) {
  const auto number = std::to_string(rank);
  std::string items =
      metadata("process_name", rank, R"("name":"rank )" + number + '"') +
      ",\n" + metadata("process_sort_index", rank, R"("sort_index":)" + number);
  std::set<int64_t> tracks;
  for (const auto& event : events) {
    tracks.insert(event.track);
  }
  for (const int64_t track : tracks) {
    if (const auto name = name_of(track); !name.empty()) {
      items += ",\n" +
               metadata("thread_name", rank, R"("name":")" + name + '"', track);
    }
  }
  for (const auto& event : events) {
    items += ",\n{\"ph\":\"X\",\"cat\":\"" + std::string(category(event.kind)) +
             "\",\"name\":" + json_string(event.name) + ",\"pid\":" + number +
             ",\"tid\":" + std::to_string(event.track) +
             ",\"ts\":" + microseconds(event.span.begin - origin) +
             ",\"dur\":" + microseconds(event.span.length());
    if (event.elements > 0) {
      items +=
          ",\"args\":{\"elements\":" + std::to_string(event.elements) + "}";
    }
    items += "}";
  }
  return items;
}

std::string timeline(const std::vector<std::string>& items) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (size_t rank = 0; rank < items.size(); ++rank) {
    text += (rank == 0 ? "\n" : ",\n") + items[rank];
  }
  return text + "\n]}\n";
}

}  // namespace ddp::detail
