#include <algorithm>
#include <map>
#include <utility>

#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/nccl/call.h"

namespace fake_gpu {
namespace {

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};

thread_local Group group;

/// Queues one operation for all calls of a group on one stream.
Point queue(Stream* stream, const std::vector<Call>& list) {
  auto calls = std::make_shared<std::vector<Call>>(list);
  for (Call& call : *calls) {
    call.number = ++call.communicator->calls;
    ++call.communicator->unfinished;
  }
  const auto step = [calls] {
    if (!progress(*calls)) {
      return false;
    }
    for (const Call& call : *calls) {
      --call.communicator->unfinished;
    }
    return true;
  };
  const auto wanted = [calls] {
    return std::any_of(calls->begin(), calls->end(), is_wanted);
  };
  const Point point =
      enqueue(stream, "NCCL " + text_of(calls->front().shape), step, wanted);
  for (const Call& call : *calls) {
    call.communicator->note(point);
  }
  return point;
}

/// Queues the calls, or records them: each launch of the graph makes them anew.
void queue_or_record(Stream* stream, std::vector<Call> calls) {
  if (is_capturing(stream)) {
    record(stream, [calls = std::move(calls)](Stream* hidden) {
      return queue(hidden, calls);
    });
  } else {
    queue(stream, calls);
  }
}

}  // namespace

void submit(Call call) {
  if (group.depth > 0) {
    group.calls.push_back(std::move(call));
  } else {
    Stream* stream = call.stream;
    queue_or_record(stream, {std::move(call)});
  }
}

void open_group() {
  ++group.depth;
}

void close_group() {
  if (--group.depth > 0) {
    return;
  }
  std::map<Stream*, std::vector<Call>> streams;
  for (Call& call : std::exchange(group.calls, {})) {
    streams[call.stream].push_back(std::move(call));
  }
  for (auto& [stream, calls] : streams) {
    queue_or_record(stream, std::move(calls));
  }
}

}  // namespace fake_gpu
