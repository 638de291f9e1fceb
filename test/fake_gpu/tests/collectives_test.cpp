#include <nccl.h>

#include <barrier>
#include <functional>
#include <numeric>
#include <thread>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/tests/device_buffer.h"
#include "test/support/catch.h"

// Ranks are threads of this process. Inputs differ by rank; expected results
// are closed-form expressions.
namespace fake_gpu::test {
namespace collectives_test {

constexpr int kRanks = 3;
using Floats = std::vector<float>;

struct Rank {
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
};

/// Runs `body` on each rank. `body` returns an error text, or "".
void on_ranks(const std::function<std::string(const Rank&)>& body) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank);
      const NonBlockingStream stream;
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess) {
        errors[rank] = "cannot join";
        return;
      }
      errors[rank] = body({rank, comm, stream});
      ncclCommDestroy(comm);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& error : errors) {
    CHECK(error == "");
  }
}

/// Returns a vector with rank + 1 in all elements except the first, which is 10
/// x rank.
Floats input_of(int rank, size_t count) {
  Floats values(count, static_cast<float>(rank + 1));
  values[0] = static_cast<float>(10 * rank);
  return values;
}

std::string compare(const Floats& got, const Floats& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(got.at(i) == expected[i])) {
      return "element " + std::to_string(i) + " is " + std::to_string(got[i]) +
             ", not " + std::to_string(expected[i]);
    }
  }
  return "";
}

void any_schedule() {
  const auto mode = GENERATE(Mode::eager, Mode::lazy, Mode::priority);
  const auto seed = GENERATE(1, 2);
  schedule(mode, seed);
}

TEST_CASE("all-reduce adds up and averages, in one round and in many") {
  any_schedule();
  const size_t count = GENERATE(size_t{5}, size_t{600000});
  on_ranks([&](const Rank& rank) {
    DeviceBuffer values(count * sizeof(float));
    values.write(input_of(rank.rank, count));
    for (const auto reduction : {ncclSum, ncclAvg}) {
      ncclAllReduce(values.data(),
                    values.data(),
                    count,
                    ncclFloat32,
                    reduction,
                    rank.comm,
                    rank.stream);
    }
    cudaStreamSynchronize(rank.stream);
    Floats expected(count, 1 + 2 + 3);
    expected[0] = 0 + 10 + 20;
    return compare(values.read<float>(), expected);
  });
}

TEST_CASE("the other collectives move what they should") {
  any_schedule();
  on_ranks([](const Rank& rank) {
    constexpr size_t kCount = 4;
    DeviceBuffer one(kCount * sizeof(float));
    DeviceBuffer all(kRanks * kCount * sizeof(float));
    const Floats mine = input_of(rank.rank, kCount);
    one.write(mine);
    ncclAllGather(
        one.data(), all.data(), kCount, ncclFloat32, rank.comm, rank.stream);
    ncclReduceScatter(all.data(),
                      one.data(),
                      kCount,
                      ncclFloat32,
                      ncclSum,
                      rank.comm,
                      rank.stream);
    cudaStreamSynchronize(rank.stream);
    Floats gathered;
    for (int from = 0; from < kRanks; ++from) {
      const auto part = input_of(from, kCount);
      gathered.insert(gathered.end(), part.begin(), part.end());
    }
    auto error = compare(all.read<float>(), gathered);
    Floats tripled = mine;
    for (float& value : tripled) {
      value *= kRanks;
    }
    error += compare(one.read<float>(), tripled);
    ncclBcast(one.data(), kCount, ncclFloat32, 2, rank.comm, rank.stream);
    cudaStreamSynchronize(rank.stream);
    return error + compare(one.read<float>(), {60, 9, 9, 9});
  });
}

TEST_CASE("a ring of sends and receives in a group") {
  any_schedule();
  on_ranks([](const Rank& rank) {
    constexpr size_t kCount = 50000;  // more than one piece
    DeviceBuffer sent(kCount * sizeof(float));
    DeviceBuffer received(kCount * sizeof(float));
    sent.write(input_of(rank.rank, kCount));
    const int next = (rank.rank + 1) % kRanks;
    const int previous = (rank.rank + kRanks - 1) % kRanks;
    ncclGroupStart();
    ncclSend(sent.data(), kCount, ncclFloat32, next, rank.comm, rank.stream);
    ncclRecv(
        received.data(), kCount, ncclFloat32, previous, rank.comm, rank.stream);
    ncclGroupEnd();
    cudaStreamSynchronize(rank.stream);
    return compare(received.read<float>(), input_of(previous, kCount));
  });
}

TEST_CASE("a collective that its stream does not wait for reads old values") {
  schedule(Mode::lazy, 1);
  std::barrier<> looked(kRanks);
  on_ranks([&](const Rank& rank) {
    DeviceBuffer values(sizeof(float));
    values.write(Floats{100});
    const NonBlockingStream writer;
    void* pinned = nullptr;
    cudaHostAlloc(&pinned, sizeof(float), 0);
    *static_cast<float*>(pinned) = 1;
    cudaMemcpyAsync(
        values.data(), pinned, sizeof(float), cudaMemcpyDefault, writer);
    ncclAllReduce(values.data(),
                  values.data(),
                  1,
                  ncclFloat32,
                  ncclSum,
                  rank.comm,
                  rank.stream);
    cudaStreamSynchronize(rank.stream);
    const auto error = compare(values.read<float>(), {300});
    looked.arrive_and_wait();  // because freeing memory waits for all streams
    writer.synchronize();
    cudaFreeHost(pinned);
    return error;
  });
}

TEST_CASE("aborting drops what is queued, and says how much") {
  schedule(Mode::lazy, 1);
  reset_counts();
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
  DeviceBuffer from(sizeof(float));
  DeviceBuffer to(sizeof(float));
  from.write(Floats{4});
  to.write(Floats{7});
  const NonBlockingStream stream;
  ncclAllReduce(from.data(), to.data(), 1, ncclFloat32, ncclSum, comm, stream);
  ncclCommAbort(comm);
  stream.synchronize();
  CHECK(counts().aborted_collectives == 1);
  CHECK(to.read<float>().at(0) == 7);
}

}  // namespace collectives_test
}  // namespace fake_gpu::test
