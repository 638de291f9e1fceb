#include "samples/support/trace.h"

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <limits>
#include <set>
#include <sstream>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <ddp/collectives.h>
#include <ddp/process_group.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "samples/support/devices.h"

namespace samples {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using Kind = TraceEvent::Kind;

// Tracks of sums in shared memory. Linux's ids of threads are below 2^22.
constexpr int64_t kFirstSharedTrack = int64_t{1} << 22;

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

Kind kind_of(const kineto::KinetoEvent& event, const c10::Device& device) {
  const auto type = static_cast<libkineto::ActivityType>(event.activityType());
  const auto name = event.name();
  if (device.is_cuda() && type == libkineto::ActivityType::CONCURRENT_KERNEL) {
    return starts_with(name, "nccl") ? Kind::communication : Kind::compute;
  }
  // For example gloo:all_to_all; ddp:all_reduce is one in shared memory.
  if (starts_with(name, "gloo:") || starts_with(name, "ddp:")) {
    return Kind::communication;
  }
  if (device.is_cpu() && starts_with(name, "autograd::engine::evaluate")) {
    return Kind::compute;
  }
  if (type == libkineto::ActivityType::USER_ANNOTATION) {
    return Kind::scope;
  }
  return Kind::other;
}

int64_t elements_of(const kineto::KinetoEvent& event) {
  int64_t sum = 0;
  for (const auto& shape : event.shapes()) {
    int64_t product = 1;
    for (const int64_t size : shape) {
      product *= size;
    }
    sum += shape.empty() ? 0 : product;
  }
  return sum;
}

std::set<ActivityType> activities(const c10::Device& device) {
  return device.is_cuda()
             ? std::set<ActivityType>{ActivityType::CPU, ActivityType::CUDA}
             : std::set<ActivityType>{ActivityType::CPU};
}

/// Sums in shared memory have no thread and overlap each other: gives
/// them tracks of their own, on which no two overlap.
void spread_over_tracks(std::vector<TraceEvent>& events) {
  std::vector<TraceEvent*> overlapping;
  for (auto& event : events) {
    if (starts_with(event.name, "ddp:")) {
      overlapping.push_back(&event);
    }
  }
  std::sort(overlapping.begin(),
            overlapping.end(),
            [](const TraceEvent* a, const TraceEvent* b) {
              return a->span.begin < b->span.begin;
            });
  std::vector<int64_t> ends;  // of the last event on each track
  for (TraceEvent* event : overlapping) {
    const auto free =
        std::find_if(ends.begin(), ends.end(), [event](int64_t end) {
          return end <= event->span.begin;
        });
    event->track = kFirstSharedTrack + (free - ends.begin());
    if (free == ends.end()) {
      ends.push_back(event->span.end);
    } else {
      *free = event->span.end;
    }
  }
}

const char* category(Kind kind) {
  switch (kind) {
    case Kind::scope:
      return "scope";
    case Kind::compute:
      return "compute";
    case Kind::communication:
      return "communication";
    case Kind::other:
      return "other";
  }
  return "other";
}

// Returns one rank's events as items of Chrome's JSON trace format, separated
// by commas: the names of the rank, which a viewer shows as a process, and of
// its tracks of sums in shared memory, then one complete event ("X") each. The
// time `origin` becomes 0.
std::string timeline_items(const std::vector<TraceEvent>& events,
                           int rank,
                           int64_t origin) {
  std::ostringstream items;
  items << std::fixed << std::setprecision(3)  // of a microsecond
        << R"({"ph":"M","name":"process_name","pid":)" << rank
        << R"(,"args":{"name":"rank )" << rank << R"("}})";
  int64_t tracks = kFirstSharedTrack;
  for (const auto& event : events) {
    tracks = std::max(tracks, event.track + 1);
  }
  for (int64_t track = kFirstSharedTrack; track < tracks; ++track) {
    items << R"(,{"ph":"M","name":"thread_name","pid":)" << rank
          << ",\"tid\":" << track
          << R"(,"args":{"name":"sums in shared memory"}})";
  }
  for (const auto& event : events) {
    items << ",\n{\"ph\":\"X\",\"cat\":\"" << category(event.kind)
          << "\",\"name\":" << std::quoted(event.name) << ",\"pid\":" << rank
          << ",\"tid\":" << event.track
          << ",\"ts\":" << static_cast<double>(event.span.begin - origin) / 1000
          << ",\"dur\":" << static_cast<double>(event.span.length()) / 1000
          << ",\"args\":{\"elements\":" << event.elements << "}}";
  }
  return items.str();
}

// Returns the earliest begin of all events of all ranks.
int64_t common_origin(const std::vector<TraceEvent>& events,
                      const c10::intrusive_ptr<c10d::Backend>& group) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& event : events) {
    first = std::min(first, event.span.begin);
  }
  return ddp::reduce_tensor(
             at::full({1}, first, at::kLong), ddp::Reduction::min, group)
      .item<int64_t>();
}

}  // namespace

TimeSpans unite(std::vector<TimeSpan> spans) {
  std::sort(
      spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) {
        return a.begin < b.begin;
      });
  TimeSpans result;
  for (const TimeSpan& span : spans) {
    if (span.end <= span.begin) {
      continue;
    }
    if (!result.empty() && span.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

TimeSpans intersect(const TimeSpans& a, const TimeSpans& b) {
  TimeSpans result;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const TimeSpan both{std::max(x->begin, y->begin), std::min(x->end, y->end)};
    if (both.begin < both.end) {
      result.push_back(both);
    }
    x->end < y->end ? void(++x) : void(++y);
  }
  return result;
}

int64_t total_length(const TimeSpans& spans) {
  int64_t sum = 0;
  for (const TimeSpan& span : spans) {
    sum += span.length();
  }
  return sum;
}

Profiler::Profiler(c10::Device device) : device_(device) {
  const ProfilerConfig config(ProfilerState::KINETO,
                              /*report_input_shapes=*/true);
  kineto::prepareProfiler(config, activities(device_));
  kineto::enableProfiler(config, activities(device_));
}

Profiler::~Profiler() {
  if (is_running_) {
    kineto::disableProfiler();
  }
}

std::vector<TraceEvent> Profiler::stop() {
  TORCH_CHECK(is_running_,
              "Expected a profiler that runs, but it has been stopped.");
  is_running_ = false;
  synchronize(device_);
  const auto result = kineto::disableProfiler();
  std::vector<TraceEvent> events;
  for (const auto& event : result->events()) {
    events.push_back({kind_of(event, device_),
                      event.name(),
                      {static_cast<int64_t>(event.startNs()),
                       static_cast<int64_t>(event.endNs())},
                      elements_of(event),
                      event.deviceResourceId()});
  }
  spread_over_tracks(events);
  return events;
}

void save_timeline(const std::string& file,
                   const std::vector<TraceEvent>& events,
                   const c10::intrusive_ptr<c10d::Backend>& group) {
  const int own = group ? group->getRank() : ddp::rank();
  const auto items = ddp::all_gather_text(
      timeline_items(events, own, common_origin(events, group)), group);
  if (own != 0) {
    return;
  }
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (size_t rank = 0; rank < items.size(); ++rank) {
    out << (rank == 0 ? "\n" : ",\n") << items[rank];
  }
  out << "\n]}\n";
  out.close();
  TORCH_CHECK(out, "Expected to write ", file, ", but cannot.");
}

}  // namespace samples
