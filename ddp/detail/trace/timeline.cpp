#include "ddp/detail/trace/timeline.h"

#include <cstdio>

namespace ddp::detail {
namespace {

// A JSON string; UTF-8 stays as it is.
std::string quote(const std::string& text) {
  std::string quoted = "\"";
  for (const unsigned char byte : text) {
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(byte);
    } else if (byte >= 0x20) {
      quoted += static_cast<char>(byte);
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", byte);
      quoted += code;
    }
  }
  return quoted + "\"";
}

// Of a rank: a viewer shows it as a process.
std::string process(const char* what, int rank, const std::string& arguments) {
  return R"({"ph":"M","name":")" + std::string(what) + R"(","pid":)" +
         std::to_string(rank) + R"(,"tid":0,"args":{)" + arguments + "}}";
}

// Microseconds, to the nanosecond.
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
      process("process_name", rank, R"("name":"rank )" + number + '"') + ",\n" +
      process("process_sort_index", rank, R"("sort_index":)" + number);
  for (const auto& event : events) {
    items += ",\n{\"ph\":\"X\",\"name\":" + quote(event.name) +
             ",\"pid\":" + number + ",\"tid\":" + std::to_string(event.track) +
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
