// Sums in shared memory. The ranks are threads over one mapping, so that
// ThreadSanitizer sees the accesses of all ranks.
#include "ddp/shared_memory/shared_sums.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "test/support/catch.h"
#include "test/support/rank_threads.h"

namespace ddp::detail {
namespace shared_sums_test {

using Catch::Contains;
using std::chrono::milliseconds;

constexpr milliseconds kLong{120'000};

struct Job {
  explicit Job(int size)
      : ranks(size),
        file(SharedMemory::make_file(size, SumBoard::bytes(size))),
        memory(std::make_shared<SharedMemory>(
            FileDescriptor(::dup(file.get())), size, SumBoard::bytes(size))) {}

  SharedSums sums(int rank) { return SharedSums(memory, rank); }
  void run(const std::function<void(int rank)>& body) {
    test::throw_first(test::try_rank_threads(ranks, body));
  }
  /// Memory that the arenas and the board take now.
  int64_t bytes() const {
    struct stat status {};
    ::fstat(file.get(), &status);
    return static_cast<int64_t>(status.st_blocks) * 512;
  }

  const int ranks;
  FileDescriptor file;
  std::shared_ptr<SharedMemory> memory;
};

TEST_CASE("ranks sum buckets and write to them at once") {
  const int ranks = GENERATE(2, 3);
  constexpr int kPasses = 60;
  constexpr int kBuckets = 4;
  Job job(ranks);
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    std::vector<torch::Tensor> buckets;
    for (int i = 0; i < kBuckets; ++i) {
      buckets.push_back(sums.allocate(1 + i * 300, torch::kFloat));
    }
    for (int pass = 0; pass < kPasses; ++pass) {
      std::vector<SumNumber> numbers;
      for (int i = 0; i < kBuckets; ++i) {
        buckets[static_cast<size_t>(i)].fill_(rank + pass * i);
        numbers.push_back(sums.start(buckets[static_cast<size_t>(i)]));
      }
      for (int i = 0; i < kBuckets; ++i) {
        auto& bucket = buckets[static_cast<size_t>(i)];
        sums.finish(numbers[static_cast<size_t>(i)], kLong);
        const int expected = ranks * (ranks - 1) / 2 + ranks * pass * i;
        TORCH_CHECK(bucket.eq(expected).all().item<bool>());
        bucket.fill_(-1);
      }
    }
  });
}

TEST_CASE("more sums may start than a rank has places for") {
  constexpr int kSums = 2 * SumBoard::kPlaces + 3;
  const int first = GENERATE(0, 1);
  CAPTURE(first);
  Job job(2);
  std::promise<void> has_started;
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    const auto memory = sums.allocate(kSums * 32, torch::kLong);
    std::vector<SumNumber> numbers;
    if (rank != first) {  // a start that waited for this rank would not end
      const auto started = has_started.get_future();
      TORCH_CHECK(started.wait_for(kLong / 2) == std::future_status::ready);
    }
    for (int i = 0; i < kSums; ++i) {
      numbers.push_back(
          sums.start(memory.narrow(0, i * 32, 32).fill_(rank + i)));
    }
    if (rank == first) {
      has_started.set_value();
    }
    for (int i = 0; i < kSums; ++i) {
      sums.finish(numbers[static_cast<size_t>(i)], kLong);
      TORCH_CHECK(
          memory.narrow(0, i * 32, 32).eq(1 + 2 * i).all().item<bool>());
    }
  });
}

TEST_CASE("a rank gets its own part of a scattered sum") {
  const int ranks = GENERATE(2, 3, 4);
  constexpr int64_t kPart = 128;
  Job job(ranks);
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    const auto whole = sums.allocate(kPart, torch::kInt).fill_(rank);
    const auto tensor = sums.allocate(kPart * ranks, torch::kInt).fill_(rank);
    const auto scattered = sums.start(tensor, 0, /*is_scattered=*/true);
    const auto reduced = sums.start(whole);
    sums.finish(scattered, kLong);
    sums.finish(reduced, kLong);
    const int sum = ranks * (ranks - 1) / 2;
    for (int part = 0; part < ranks; ++part) {
      const auto values = tensor.narrow(0, part * kPart, kPart);
      TORCH_CHECK(values.eq(part == rank ? sum : rank).all().item<bool>());
    }
    TORCH_CHECK(whole.eq(sum).all().item<bool>());
  });
}

TEST_CASE("kept memory of all ranks lies side by side") {
  constexpr int kRanks = 3;
  constexpr size_t kBytes = 8192;
  Job job(kRanks);
  std::vector<std::shared_ptr<std::byte>> views;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto offset = job.memory->allocate_kept(kBytes, rank);
    REQUIRE(offset == uint64_t{0});
    views.push_back(job.memory->map_side_by_side(*offset, kBytes, rank));
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    views[rank].get()[rank * kBytes + 5] = std::byte(rank + 1);
  }
  for (const auto& view : views) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      CHECK(view.get()[rank * kBytes + 5] == std::byte(rank + 1));
    }
  }
  CHECK(job.memory->allocate_kept(1, 0) == kBytes);
}

TEST_CASE("a rank has the tensors that it has allocated") {
  Job job(2);
  auto sums = job.sums(1);
  auto of_other = job.sums(0);
  CHECK(sums.has(sums.allocate(100, torch::kFloat).narrow(0, 50, 50)));
  CHECK(sums.has(sums.allocate(0, torch::kFloat)));
  CHECK_FALSE(sums.has(of_other.allocate(100, torch::kFloat)));
  CHECK_FALSE(sums.has(torch::zeros({100})));
  CHECK_FALSE(sums.has(torch::zeros({0})));
  CHECK_FALSE(sums.has(torch::zeros({4, 4}).to_sparse()));
}

TEST_CASE("a sum of no elements is a sum") {
  Job job(2);
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    sums.finish(sums.start(sums.allocate(0, torch::kFloat)), kLong);
  });
}

/// Expects the sum of two ranks to fail on both.
void expect_error(const std::string& text,
                  const std::function<SumNumber(SharedSums&, int)>& start) {
  Job job(2);
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    std::string error;
    try {
      sums.finish(start(sums, rank), kLong);
    } catch (const std::runtime_error& thrown) {
      error = thrown.what();
    }
    TORCH_CHECK(error.find(text) != std::string::npos, error);
  });
}

TEST_CASE("ranks with different tensors all get an error") {
  expect_error(
      "rank 0 brings 10 elements of Float, rank 1 brings 11 elements of Float",
      [](SharedSums& sums, int rank) {
        return sums.start(sums.allocate(10 + rank, torch::kFloat));
      });
}

TEST_CASE("ranks with sums of different numbers all get an error") {
  expect_error("a sum of gradients is collective 7 of rank 0 and 8 of rank 1",
               [](SharedSums& sums, int rank) {
                 return sums.start(sums.allocate(10, torch::kFloat),
                                   static_cast<uint64_t>(7 + rank));
               });
}

// --- waits end ---

TEST_CASE("a rank waits for another at most the time-out") {
  Job job(2);
  auto sums = job.sums(0);
  const auto number = sums.start(sums.allocate(10, torch::kFloat));
  CHECK_THROWS_WITH(sums.finish(number, milliseconds(100)),
                    Contains("Timed out waiting for rank 1"));
  // From now on the other rank's steps belong to sums that this rank has left.
  CHECK_THROWS_WITH(sums.start(sums.allocate(3, torch::kFloat)),
                    Contains("an earlier sum"));
  auto late = job.sums(1);
  const auto number_of_late = late.start(late.allocate(10, torch::kFloat));
  CHECK_THROWS_WITH(late.finish(number_of_late, kLong),
                    Contains("rank 0 of the group has left or stopped"));
}

TEST_CASE("memory that a slow rank still reads is not given back") {
  Job job(2);
  auto slow = job.sums(1);
  auto theirs = slow.allocate(1000, torch::kFloat);
  slow.start(theirs);
  const int64_t before = job.bytes();
  {
    auto sums = job.sums(0);
    const auto number = sums.start(sums.allocate(1000, torch::kFloat).fill_(1));
    CHECK_THROWS_WITH(sums.finish(number, milliseconds(1)),
                      Contains("Timed out"));
  }
  CHECK(job.bytes() > before);
}

TEST_CASE("a rank that has stopped ends the wait for it") {
  Job job(2);
  { const auto stopped = job.sums(1); }
  auto sums = job.sums(0);
  const auto number = sums.start(sums.allocate(10, torch::kFloat));
  CHECK_THROWS_WITH(sums.finish(number, kLong),
                    Contains("rank 1 of the group has left or stopped"));
}

TEST_CASE("a rank that stopped after its part is not missed") {
  Job job(2);
  job.run([&](int rank) {
    auto sums = job.sums(rank);
    auto tensor = sums.allocate(10, torch::kFloat).fill_(1);
    sums.finish(sums.start(tensor), kLong);
    TORCH_CHECK(tensor.eq(2).all().item<bool>());
  });
}

TEST_CASE("a stop ends the wait of this rank") {
  Job job(2);
  auto sums = job.sums(0);
  const auto number = sums.start(sums.allocate(10, torch::kFloat));
  auto wait =
      std::async(std::launch::async, [&] { sums.finish(number, kLong); });
  sums.stop();
  CHECK_THROWS_WITH(wait.get(), Contains("the group was closed"));
}

// --- memory ---

TEST_CASE("memory is zeros, is given back, and outlives all else") {
  Job job(2);
  { const auto stopped = job.sums(0); }  // writes to the board
  const int64_t at_first = job.bytes();
  constexpr int64_t kNumel = 1 << 20;
  torch::Tensor kept;
  {
    auto sums = job.sums(0);
    auto tensor = sums.allocate(kNumel, torch::kFloat);
    CHECK(tensor.eq(0).all().item<bool>());
    tensor.fill_(1);
    CHECK(job.bytes() == at_first + kNumel * 4);
    const auto* address = tensor.data_ptr();
    tensor.reset();
    CHECK(job.bytes() == at_first);
    kept = sums.allocate(kNumel, torch::kFloat);
    CHECK(kept.data_ptr() == address);
    CHECK(kept.eq(0).all().item<bool>());
  }
  job.memory.reset();
  kept.fill_(3);
  CHECK(kept.sum().item<float>() == 3.0F * kNumel);
  kept.reset();
  CHECK(job.bytes() == at_first);
}

TEST_CASE("gaps between tensors are used again") {
  Job job(2);
  auto sums = job.sums(1);
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(sums.allocate(4096, torch::kByte));
  }
  const auto* first = tensors[0].data_ptr();
  const auto* second = tensors[1].data_ptr();
  tensors[1].reset();
  tensors[2].reset();
  const auto large = sums.allocate(8192, torch::kByte);
  CHECK(large.data_ptr() == second);
  tensors[0].reset();
  CHECK(sums.allocate(1, torch::kByte).data_ptr() == first);
}

TEST_CASE("an allocation that does not fit is undefined") {
  Job job(2);
  auto sums = job.sums(0);
  CHECK_FALSE(sums.allocate(int64_t{1} << 50, torch::kByte).defined());
  CHECK(sums.allocate(10, torch::kByte).defined());
}

}  // namespace shared_sums_test
}  // namespace ddp::detail
