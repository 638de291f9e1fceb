#include "test/fake_gpu/counters.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

struct NamedCounter {
  const char* name;
  uint64_t Counts::*value;
};

constexpr NamedCounter kCounters[] = {
    {"device_synchronizes", &Counts::device_synchronizes},
    {"stream_synchronizes", &Counts::stream_synchronizes},
    {"event_synchronizes", &Counts::event_synchronizes},
    {"blocking_copies", &Counts::blocking_copies},
    {"event_records", &Counts::event_records},
    {"event_queries", &Counts::event_queries},
    {"event_waits", &Counts::event_waits},
    {"kernels", &Counts::kernels},
    {"operators", &Counts::operators},
    {"graph_launches", &Counts::graph_launches},
    {"copies_to_device", &Counts::copies_to_device},
    {"copies_to_host", &Counts::copies_to_host},
    {"copies_on_device", &Counts::copies_on_device},
    {"copies_on_host", &Counts::copies_on_host},
    {"memsets", &Counts::memsets},
    {"allocations", &Counts::allocations},
    {"frees", &Counts::frees},
    {"pinned_allocations", &Counts::pinned_allocations},
    {"all_reduces", &Counts::all_reduces},
    {"broadcasts", &Counts::broadcasts},
    {"reduces", &Counts::reduces},
    {"all_gathers", &Counts::all_gathers},
    {"reduce_scatters", &Counts::reduce_scatters},
    {"all_to_alls", &Counts::all_to_alls},
    {"sends", &Counts::sends},
    {"receives", &Counts::receives},
    {"aborted_collectives", &Counts::aborted_collectives},
};
static_assert(sizeof(kCounters) / sizeof(NamedCounter) ==
              sizeof(Counts) / sizeof(uint64_t));

struct Counters {
  std::mutex mutex;
  Counts counts;
};

/// Appends the counts as one JSON object in one line, so that several processes
/// can share a file.
void append_counts(const std::string& path, const Counts& counts) {
  std::string line = "{\"pid\": " + std::to_string(::getpid());
  for (const NamedCounter& item : kCounters) {
    line += std::string(", \"") + item.name +
            "\": " + std::to_string(counts.*item.value);
  }
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) {
    say("cannot write the counts to " + path);
    return;
  }
  std::fputs((line + "}\n").c_str(), file);
  std::fclose(file);
}

Counters& counters() {
  static Counters* const instance = [] {
    if (!settings().counts_file.empty()) {
      std::atexit([] {
        const std::lock_guard lock(counters().mutex);
        append_counts(settings().counts_file, counters().counts);
      });
    }
    return new Counters;
  }();
  return *instance;
}

}  // namespace

void count(uint64_t Counts::*what) {
  Counters& s = counters();
  const std::lock_guard lock(s.mutex);
  ++(s.counts.*what);
}

}  // namespace fake_gpu

void fake_gpu_counts(fake_gpu::Counts* result) {
  auto& s = fake_gpu::counters();
  const std::lock_guard lock(s.mutex);
  *result = s.counts;
}

void fake_gpu_reset_counts() {
  auto& s = fake_gpu::counters();
  const std::lock_guard lock(s.mutex);
  s.counts = {};
}
