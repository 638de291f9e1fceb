#include "test/support/local_ranks.h"

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddp/job/backends.h"
#include "ddp/job/monitored_backend.h"
#include "test/support/rank_threads.h"

namespace ddp::test {
namespace {

/// Time-out of a collective. Shorter than the time limit of the ranks, so that
/// the collective fails first with an error that names its place.
constexpr auto kTimeout = kRankPatience / 2;

/// Disables LibTorch's flight recorder. There is one per process, and a part of
/// its state has no lock, so ranks in threads would race in it.
const bool kNoFlightRecorder = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

/// A barrier of the ranks without their backends. Ranks that have failed are
/// not waited for.
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

/// The shared state of the ranks of one run.
struct Ranks {
  explicit Ranks(int size) : meeting(size) {
    const detail::BatchThreadsGuard as_in_a_job;
    device = c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }

  c10::intrusive_ptr<c10d::HashStore> store =
      c10::make_intrusive<c10d::HashStore>();
  /// One thread polls the sockets of all ranks. With one thread per rank, as in
  /// processes, the tests used a third more CPU time: a Gloo thread that finds
  /// a connection locked by its rank retries at once, and repeats this while
  /// the rank has no core.
  std::shared_ptr<::gloo::transport::Device> device;
  Meeting meeting;
};

using MakeGroup = std::function<Group(Ranks& ranks, int rank, int size)>;

Group make_host_group(Ranks& ranks, int rank, int size) {
  detail::BackendSpec spec;
  spec.store = ranks.store;
  spec.rank = rank;
  spec.size = size;
  spec.timeout = kTimeout;
  spec.ranks.resize(static_cast<size_t>(size));
  std::iota(spec.ranks.begin(), spec.ranks.end(), 0);
  return c10::make_intrusive<detail::MonitoredBackend>(
      detail::make_gloo_backend(spec),
      detail::GroupMembers{detail::kWorldGroup, spec.ranks},
      kTimeout,
      std::make_shared<detail::PeerState>());
}

Group make_group(Ranks& ranks, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  options->devices = {ranks.device};
  options->threads = 1;  // see make_gloo_backend()
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      ranks.store, rank, size, std::move(options));
}

void run_rank(int rank,
              int size,
              const std::function<void(const Group&)>& body,
              const MakeGroup& make,
              Ranks& ranks) {
  Meeting& meeting = ranks.meeting;
  auto leaves = c10::make_scope_exit([&] { meeting.leave(); });
  const Group group = make(ranks, rank, size);
  meeting.arrive_and_wait();  // all ranks have connected
  body(group);
  // Destroying a backend early breaks a slower rank's last collective.
  meeting.arrive_and_wait();
  leaves.release();
}

std::vector<std::string> try_ranks_over(
    const MakeGroup& make,
    int size,
    const std::function<void(const Group& group)>& body) {
  TORCH_CHECK(kNoFlightRecorder);
  // Gloo may write to sockets that the peer has closed.
  ::signal(SIGPIPE, SIG_IGN);
  Ranks ranks(size);
  return try_rank_threads(
      size, [&](int rank) { run_rank(rank, size, body, make, ranks); });
}

}  // namespace

std::vector<std::string> try_ranks(
    int size, const std::function<void(const Group& group)>& body) {
  return try_ranks_over(make_group, size, body);
}

std::vector<std::string> try_host_ranks(
    int size, const std::function<void(const Group& group)>& body) {
  return try_ranks_over(make_host_group, size, body);
}

void run_ranks(int size, const std::function<void(const Group& group)>& body) {
  throw_first(try_ranks(size, body));
}

}  // namespace ddp::test
