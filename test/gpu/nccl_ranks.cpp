#include "test/gpu/nccl_ranks.h"

#include <barrier>
#include <mutex>
#include <optional>
#include <stdexcept>

#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/job/backends.h"
#include "test/support/catch.h"
#include "test/support/rank_threads.h"

namespace ddp::test {
namespace {

constexpr std::chrono::seconds kTimeout{60};

/// The backends of all ranks.
class Backends {
 public:
  void add(const c10::intrusive_ptr<c10d::Backend>& backend) {
    const std::lock_guard lock(mutex_);
    all_.push_back(backend);
    if (aborted_) {
      backend->abort();
    }
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const auto& backend : all_) {
      backend->abort();
    }
  }

 private:
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> all_;
  bool aborted_ = false;
};

}  // namespace

c10::Stream NcclRank::new_stream() const {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
}

void NcclRank::expect(bool condition, const std::string& what) const {
  if (!condition) {
    throw std::runtime_error("rank " + std::to_string(rank) + " of " +
                             std::to_string(size) + ": " + what);
  }
}

void NcclRank::expect_close(const at::Tensor& got,
                            const at::Tensor& expected,
                            const std::string& what) const {
  expect(got.defined(), what + " is undefined");
  const auto ours = got.detach().cpu().to(at::kDouble);
  const auto theirs = expected.detach().cpu().to(at::kDouble);
  expect(ours.sizes() == theirs.sizes(), what + " has another shape");
  const auto off = (ours - theirs).abs().max().item<double>();
  expect(ours.allclose(theirs, 1e-4, 1e-6),
         what + " is off by " + std::to_string(off));
}

std::vector<std::string> try_nccl_ranks(
    int size, const std::function<void(const NcclRank&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Backends backends;
  std::barrier<> meeting(size);
  return try_rank_threads(size, [&](int index) {
    NcclRank rank;
    rank.rank = index;
    rank.size = size;
    rank.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    rank.meet = [&] { meeting.arrive_and_wait(); };
    try {
      detail::BackendSpec spec;
      spec.store = store;
      spec.rank = index;
      spec.size = size;
      spec.device = rank.device;
      spec.timeout = kTimeout;
      rank.group = detail::make_nccl_backend(spec);
      backends.add(rank.group);
      body(rank);
      meeting.arrive_and_wait();  // no rank shuts down while others still run
      rank.group->shutdown();
    } catch (...) {
      backends.abort();
      meeting.arrive_and_drop();
      throw;
    }
  });
}

void run_nccl_ranks(int size,
                    const std::function<void(const NcclRank&)>& body) {
  throw_first(try_nccl_ranks(size, body));
  SUCCEED();  // counts the ranks' own checks as one of Catch2's
}

bool has_gpus(int count) {
  const int found = detail::nccl_device_count();
  if (found < count) {
    WARN("skipped: it takes " << count << " GPUs, there are " << found);
  }
  return found >= count;
}

}  // namespace ddp::test
