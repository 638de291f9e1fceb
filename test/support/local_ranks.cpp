#include "test/support/local_ranks.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/detail/process_group/backends.h"
#include "test/support/rank_threads.h"

namespace ddp::test {
namespace {

/// Of a collective. Ends before the patience with the ranks does, and so with
/// an error that says where.
constexpr auto kTimeout = kRankPatience / 2;

/// LibTorch's flight recorder is one for the whole process and guards part of
/// its state with no lock, so ranks that are threads would race in it.
const bool kNoFlightRecorder = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

/// Where ranks wait for each other without their backend; a rank that failed
/// is no longer waited for.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const int round = round_;
    ++arrived_;
    advance();
    changed_.wait(lock, [&] { return round_ != round; });
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    --size_;
    advance();
  }

 private:
  void advance() {
    if (arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int size_;
  int arrived_ = 0;
  int round_ = 0;
};

void run_rank(const c10::intrusive_ptr<c10d::Store>& store,
              int rank,
              int size,
              const std::function<void(const Group&)>& body,
              Meeting& meeting) {
  auto leaves = c10::make_scope_exit([&] { meeting.leave(); });
  detail::BackendSpec spec;
  spec.store = store;
  spec.rank = rank;
  spec.size = size;
  spec.timeout = kTimeout;
  const Group group = detail::make_gloo_backend(spec);
  meeting.arrive_and_wait();  // all have connected
  body(group);
  // A backend that goes early breaks a slower rank's last collective.
  meeting.arrive_and_wait();
  leaves.release();
}

}  // namespace

std::vector<std::string> try_ranks(
    int size, const std::function<void(const Group& group)>& body) {
  TORCH_CHECK(kNoFlightRecorder);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Meeting meeting(size);
  return try_rank_threads(
      size, [&](int rank) { run_rank(store, rank, size, body, meeting); });
}

void run_ranks(int size, const std::function<void(const Group& group)>& body) {
  throw_first(try_ranks(size, body));
}

}  // namespace ddp::test
