#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/tests/device_buffer.h"
#include "test/support/catch.h"

namespace fake_gpu::test {
namespace streams_test {

using Bytes = std::vector<unsigned char>;
constexpr size_t kBytes = 64;
constexpr int kSeeds = 20;
constexpr Mode kModes[] = {
    Mode::eager, Mode::lazy, Mode::mixed, Mode::priority};

/// One stream writes, another reads. Returns true if the reader has read the
/// written values.
bool reads_what_was_written(bool waits) {
  DeviceBuffer from(kBytes);
  DeviceBuffer to(kBytes);
  const NonBlockingStream writer;
  const NonBlockingStream reader;
  cudaMemset(from.data(), 1, kBytes);
  cudaDeviceSynchronize();

  cudaMemsetAsync(from.data(), 2, kBytes, writer);
  if (waits) {
    reader.wait_for(writer);
  }
  cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDefault, reader);
  reader.synchronize();
  return to.read<unsigned char>() == Bytes(kBytes, 2);
}

/// One stream reads, then another overwrites the memory. Returns true if the
/// reader has read the original values. The host waits for the reader only.
bool reads_before_it_is_overwritten(bool waits) {
  DeviceBuffer from(kBytes);
  DeviceBuffer to(kBytes);
  const NonBlockingStream reader;
  const NonBlockingStream writer;
  cudaMemset(from.data(), 1, kBytes);
  cudaDeviceSynchronize();

  cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDefault, reader);
  if (waits) {
    writer.wait_for(reader);
  }
  cudaMemsetAsync(from.data(), 2, kBytes, writer);
  reader.synchronize();
  return to.read<unsigned char>() == Bytes(kBytes, 1);
}

/// Returns for how many of 20 seeds `is_right` was false.
int caught(Mode mode, bool (*is_right)(bool), bool waits) {
  int wrong = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    schedule(mode, seed);
    wrong += is_right(waits) ? 0 : 1;
  }
  return wrong;
}

/// Polls the condition a thousand times a second; fails the test after half a
/// minute.
template <typename Condition>
void until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      FAIL("waited in vain");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("a missing wait before a read gives wrong values") {
  CHECK(caught(Mode::lazy, reads_what_was_written, /*waits=*/false) == kSeeds);
  CHECK(caught(Mode::priority, reads_what_was_written, /*waits=*/false) > 4);
}

TEST_CASE("a missing wait before memory is used again gives wrong values") {
  CHECK(caught(Mode::priority,
               reads_before_it_is_overwritten,
               /*waits=*/false) > 4);
}

TEST_CASE("with the wait values are right in every mode") {
  for (const Mode mode : kModes) {
    CHECK(caught(mode, reads_what_was_written, /*waits=*/true) == 0);
    CHECK(caught(mode, reads_before_it_is_overwritten, /*waits=*/true) == 0);
  }
}

TEST_CASE("a wait that is lost gives wrong values, the others hold") {
  schedule(Mode::lazy, 1);
  lose_wait(2);
  CHECK(reads_what_was_written(/*waits=*/true));
  CHECK(lost_wait(0) == LostWait::none);
  CHECK_FALSE(reads_what_was_written(/*waits=*/true));
  CHECK(lost_wait(0) == LostWait::missing);
  CHECK(reads_what_was_written(/*waits=*/true));
  CHECK(lost_wait(0) == LostWait::missing);
  lose_wait(0);
  CHECK(lost_wait(0) == LostWait::none);
}

TEST_CASE("a wait is redundant after its event, or before a like one") {
  schedule(Mode::lazy, 1);
  DeviceBuffer buffer(kBytes);
  const NonBlockingStream first;
  const NonBlockingStream second;
  const auto wait_for_work = [&] {
    cudaMemsetAsync(buffer.data(), 1, kBytes, first);
    second.wait_for(first);
  };
  lose_wait(1);
  cudaMemsetAsync(buffer.data(), 1, kBytes, first);
  wait_for_work();
  CHECK(lost_wait(0) == LostWait::missing);
  wait_for_work();
  CHECK(lost_wait(0) == LostWait::covered);

  lose_wait(1);
  wait_for_work();
  cudaMemsetAsync(buffer.data(), 1, kBytes, second);
  wait_for_work();
  CHECK(lost_wait(0) == LostWait::missing);

  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  cudaEventRecord(event, first);
  first.synchronize();
  lose_wait(1);
  cudaStreamWaitEvent(second, event, 0);
  CHECK(lost_wait(0) == LostWait::reached);
  cudaEventDestroy(event);
  lose_wait(0);
}

TEST_CASE("the default stream and blocking streams wait for each other") {
  DeviceBuffer from(kBytes);
  DeviceBuffer to(kBytes);
  cudaStream_t blocking = nullptr;
  cudaStreamCreate(&blocking);
  for (int seed = 1; seed <= kSeeds; ++seed) {
    schedule(seed % 2 == 0 ? Mode::lazy : Mode::priority, seed);
    cudaMemsetAsync(from.data(), seed, kBytes, blocking);
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDefault, nullptr);
    cudaMemsetAsync(from.data(), 0, kBytes, blocking);
    cudaStreamSynchronize(blocking);
    const auto expected = static_cast<unsigned char>(seed);
    CHECK(to.read<unsigned char>() == Bytes(kBytes, expected));
  }
  cudaStreamDestroy(blocking);
}

TEST_CASE("an event is reached for a host that keeps asking") {
  schedule(Mode::lazy, 1);
  DeviceBuffer buffer(kBytes);
  const NonBlockingStream stream;
  const NonBlockingStream other;
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  CHECK(cudaEventQuery(event) == cudaSuccess);  // no event was recorded
  cudaMemsetAsync(buffer.data(), 1, kBytes, stream);
  cudaEventRecord(event, stream);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  until([&] {
    // Keeps the program busy, so that the engine does not consider it idle.
    cudaMemsetAsync(buffer.data(), 2, kBytes, other);
    return cudaEventQuery(event) == cudaSuccess;
  });
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  cudaEventDestroy(event);
}

TEST_CASE("what is queued runs for a host that waits by other means") {
  schedule(Mode::lazy, 1);
  DeviceBuffer buffer(kBytes);
  const NonBlockingStream stream;
  void* pinned = nullptr;
  cudaHostAlloc(&pinned, kBytes, 0);
  auto* host = static_cast<volatile unsigned char*>(pinned);
  host[0] = 0;
  cudaMemsetAsync(buffer.data(), 5, kBytes, stream);
  cudaMemcpyAsync(pinned, buffer.data(), 1, cudaMemcpyDefault, stream);
  until([&] { return host[0] == 5; });
  cudaFreeHost(pinned);
}

TEST_CASE("pageable memory is read at the call, pinned memory late") {
  schedule(Mode::lazy, 1);
  DeviceBuffer buffer(kBytes);
  const NonBlockingStream stream;
  Bytes pageable(kBytes, 1);
  cudaMemcpyAsync(
      buffer.data(), pageable.data(), kBytes, cudaMemcpyDefault, stream);
  pageable.assign(kBytes, 9);
  stream.synchronize();
  CHECK(buffer.read<unsigned char>() == Bytes(kBytes, 1));

  void* pinned = nullptr;
  cudaHostAlloc(&pinned, kBytes, 0);
  std::memset(pinned, 1, kBytes);
  cudaMemcpyAsync(buffer.data(), pinned, kBytes, cudaMemcpyDefault, stream);
  std::memset(pinned, 9, kBytes);
  stream.synchronize();
  CHECK(buffer.read<unsigned char>() == Bytes(kBytes, 9));
  cudaFreeHost(pinned);
}

TEST_CASE("new device memory is NaN, also where memory was before") {
  void* address = nullptr;
  for (int i = 0; i < 2; ++i) {
    DeviceBuffer buffer(kBytes);
    CHECK((address == nullptr || address == buffer.data()));
    address = buffer.data();
    CHECK(std::isnan(buffer.read<float>().at(3)));
    buffer.write(std::vector<float>(kBytes / sizeof(float), 1.5F));
    CHECK(buffer.read<float>().at(3) == 1.5F);
  }
}

TEST_CASE("errors are those of the runtime") {
  void* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, size_t{1} << 50) == cudaErrorMemoryAllocation);
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
  CHECK(std::string(cudaGetErrorString(cudaGetLastError())) ==
        "invalid device ordinal");
}

TEST_CASE("what is asked of CUDA is counted") {
  schedule(Mode::eager, 1);
  reset_counts();
  CHECK(active());
  CHECK(reads_what_was_written(/*waits=*/true));
  const Counts seen = counts();
  CHECK(seen.allocations == 2);
  CHECK(seen.frees == 2);
  CHECK(seen.memsets == 2);
  CHECK(seen.event_records == 1);
  CHECK(seen.event_waits == 1);
  CHECK(seen.copies_on_device == 1);
  CHECK(seen.copies_to_host == 1);
  CHECK(seen.device_synchronizes == 1);
  CHECK(seen.stream_synchronizes == 1);
  CHECK(seen.blocking_copies == 1);
  CHECK(seen.host_synchronizes() == 3);
  CHECK(seen.kernels == 0);
  reset_counts();
  CHECK(counts().memsets == 0);
}

}  // namespace streams_test
}  // namespace fake_gpu::test
