// Ranks that meet at a store, also one that has served earlier attempts.
#include "ddp/job/rendezvous.h"

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/base/text/record.h"
#include "test/support/catch.h"
#include "test/support/rank_threads.h"

namespace ddp {
namespace rendezvous_test {

using Catch::Contains;
using std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLong{60'000};

/// Runs `meet` on a thread of its own; returns its error, or "".
std::future<std::string> meeting(const Store& store,
                                 int rank,
                                 int size,
                                 detail::Arrival mine = {"gloo", ""},
                                 milliseconds timeout = kLong) {
  return std::async(std::launch::async, [=]() -> std::string {
    try {
      const auto keys = detail::meet(store, {rank, size}, mine, timeout);
      // The ranks of one attempt see each other's keys, and no older ones.
      keys->set("rank/" + std::to_string(rank), "");
      for (int peer = 0; peer < size; ++peer) {
        keys->wait({"rank/" + std::to_string(peer)}, timeout);
      }
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  });
}

std::string result_of(std::future<std::string>& meets) {
  if (meets.wait_for(kLong) != std::future_status::ready) {
    std::abort();  // an exception would block, too
  }
  return meets.get();
}

void meet_all(const Store& store, int size) {
  std::vector<std::future<std::string>> ranks;
  for (int rank = size - 1; rank >= 0; --rank) {
    ranks.push_back(meeting(store, rank, size));
  }
  for (auto& rank : ranks) {
    CHECK(result_of(rank) == "");
  }
}

TEST_CASE("jobs at one store have keys of their own", "[rendezvous]") {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  for (const int size : {2, 2, 3, 2, 1, 3}) {
    meet_all(store, size);
  }
}

/// The store of a rank that dies while it waits for the others.
struct DyingStore : c10d::PrefixStore {
  explicit DyingStore(const c10::intrusive_ptr<c10d::Store>& store)
      : PrefixStore("", store) {}
  using PrefixStore::wait;
  void wait(const std::vector<std::string>& keys,
            const milliseconds& timeout) override {
    if (keys.at(0).find("open/") == std::string::npos) {
      C10_THROW_ERROR(DistNetworkError, "killed");
    }
    PrefixStore::wait(keys, timeout);
  }
};

// A launcher restarts all workers after one has ended before it joined.
TEST_CASE("a restart after an attempt that not all have joined",
          "[rendezvous]") {
  const Store store = c10::make_intrusive<c10d::PrefixStore>(
      "run", c10::make_intrusive<c10d::HashStore>());
  const int size_before = GENERATE(3, 4);
  const int missing = GENERATE(0, 1, 2);
  const int first = GENERATE(0, 1, 2);
  CAPTURE(size_before, missing, first);
  for (int rank = 0; rank < size_before; ++rank) {
    // Without rank 0 there is no attempt, and the others wait for one.
    if (rank != missing && missing != 0) {
      auto ends =
          meeting(c10::make_intrusive<DyingStore>(store), rank, size_before);
      CHECK_THAT(result_of(ends), Contains("killed"));
    }
  }
  std::vector<std::future<std::string>> ranks;
  ranks.push_back(meeting(store, first, 3));
  for (int rank = 0; rank < 3; ++rank) {
    if (rank != first) {
      ranks.push_back(meeting(store, rank, 3));
    }
  }
  for (auto& rank : ranks) {
    CHECK(result_of(rank) == "");
  }
}

TEST_CASE("missing ranks are listed by rank 0", "[rendezvous][errors]") {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  auto rank_0 = meeting(store, 0, 9, {"gloo", ""}, milliseconds(300));
  auto rank_5 = meeting(store, 5, 9, {"gloo", ""}, milliseconds(300));
  for (auto* rank : {&rank_0, &rank_5}) {
    CHECK_THAT(
        result_of(*rank),
        Contains("Expected 9 ranks") && Contains("7 did not: ranks 1-4, 6-8."));
  }
}

TEST_CASE("rank 0 is missing", "[rendezvous][errors]") {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  auto rank_1 = meeting(store, 1, 2, {"gloo", ""}, milliseconds(100));
  CHECK_THAT(result_of(rank_1), Contains("1 did not: rank 0"));
}

TEST_CASE("a rank that gives up is told to the others", "[rendezvous]") {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  const int who = GENERATE(0, 1);
  auto one = meeting(store, 1 - who, 3);  // the third one never comes
  auto other = meeting(store, who, 3, {"nccl", "no GPU here"});
  const auto expected = "rank " + std::to_string(who) + ": no GPU here";
  CHECK_THAT(result_of(one), Contains(expected));
  CHECK_THAT(result_of(other), Contains(expected));
}

TEST_CASE("backends that differ are told to all", "[rendezvous]") {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  auto one = meeting(store, 0, 2, {"gloo", ""});
  auto other = meeting(store, 1, 2, {"nccl", ""});
  for (auto* rank : {&one, &other}) {
    CHECK_THAT(result_of(*rank), Contains("rank 1 uses \"nccl\""));
  }
}

/// A store that counts its calls and keys.
class CountingStore : public c10d::PrefixStore {
 public:
  CountingStore()
      : PrefixStore("counted", c10::make_intrusive<c10d::HashStore>()) {}

  using PrefixStore::set;
  using PrefixStore::wait;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++keys;
    PrefixStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++keys;
    return PrefixStore::get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++keys;
    return PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& asked) override {
    keys += static_cast<int>(asked.size());
    return PrefixStore::check(asked);
  }
  void wait(const std::vector<std::string>& asked,
            const milliseconds& timeout) override {
    keys += static_cast<int>(asked.size());
    PrefixStore::wait(asked, timeout);
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& asked) override {
    keys += static_cast<int>(asked.size());
    return PrefixStore::multiGet(asked);
  }

  std::atomic<int> keys{0};
};

TEST_CASE("ranks meet by a few keys each", "[rendezvous]") {
  const int size = GENERATE(1, 2, 9, 40);
  const auto store = c10::make_intrusive<CountingStore>();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      detail::meet(store, {rank, size}, {"gloo", ""}, kLong);
    }));
  }
  for (auto& rank : ranks) {
    rank.get();
  }
  CHECK(store->keys <= 16 * size + 8);
}

}  // namespace rendezvous_test
}  // namespace ddp
