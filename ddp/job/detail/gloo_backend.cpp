#include "ddp/job/backends.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddp/base/net/address.h"
#include "ddp/job/detail/batch_threads.h"
#include "ddp/job/detail/connect_on_thread.h"
#include "ddp/shared_memory/share_memory.h"
#include "ddp/shared_memory/shared_sums.h"

namespace ddp::detail {
namespace {

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

std::vector<GlooDevice> gloo_devices(const std::string& reach) {
  const BatchThreadsGuard each_device_has_a_thread;
  std::vector<GlooDevice> devices;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME");
      names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    return devices;
  }
  devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(
      local_address_towards(reach)));
  return devices;
}

/// Ignores SIGPIPE if it has its default action. Gloo writes to sockets that
/// the peer may have closed; the default action would end the program silently
/// instead of by an exception.
void ignore_broken_pipes() {
  struct sigaction current {};
  ::sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

/// Accesses the protected `finish` of a work, to end it from outside.
class Ender : public c10d::Work {
 public:
  static void end(c10d::Work& work, const std::exception_ptr& error) {
    (work.*&Ender::finish)(error);
  }
};

/// Adds to ProcessGroupGloo an abort, which it does not have, and sums in
/// memory that the ranks of a host share.
class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  /// Collective.
  void share_memory(const BackendSpec& spec) {
    const auto host = detail::share_memory(*this, spec.host);
    if (host.memory) {
      const auto others = connect_hosts(spec, host);
      sums_ = std::make_unique<SharedSums>(host.memory,
                                           host.hosts[host.own_host],
                                           host.own_rank,
                                           spec.has_left,
                                           others);
    }
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    ProcessGroupGloo::setTimeout(timeout);
    if (across_) {
      across_->setTimeout(timeout);
    }
  }

  /// Null if the ranks share no memory.
  SharedSums* sums() { return sums_.get(); }
  std::chrono::milliseconds timeout() const { return options_->timeout; }

  void abort() override {
    if (sums_) {
      sums_->abort();
    }
    end_connections();
    // Gloo forgets a work that was sending when its connection ended. Its
    // thread sleeps until the time-out, but the waiting callers return now.
    const auto error =
        std::make_exception_ptr(std::runtime_error("the group was aborted"));
    for (const auto& work : running()) {
      Ender::end(*work, error);
    }
  }

  bool is_working() {
    return !running().empty() || (sums_ && sums_->is_working());
  }

 private:
  /// Connects the ranks that sum the same slice, one of each host.
  OtherHosts connect_hosts(const BackendSpec& spec, const HostMemory& host) {
    if (host.hosts.size() == 1) {
      return {};
    }
    const auto fewest = std::min_element(
        host.hosts.begin(), host.hosts.end(), [](const auto& a, const auto& b) {
          return a.size() < b.size();
        });
    OtherHosts others;
    others.slices = static_cast<int>(fewest->size());
    if (host.own_rank < others.slices) {
      auto options = Options::create(options_->timeout);
      options->devices = options_->devices;
      options->threads = options_->threads;
      across_ = c10::make_intrusive<GlooBackend>(
          c10::make_intrusive<c10d::PrefixStore>(
              "slice" + std::to_string(host.own_rank), spec.store),
          static_cast<int>(host.own_host),
          static_cast<int>(host.hosts.size()),
          options);
    }
    others.all_reduce = [across = across_](const at::Tensor& tensor) {
      std::vector<at::Tensor> tensors{tensor};
      return across->allreduce(tensors);
    };
    others.stop = [across = across_] {
      if (across) {
        across->abort();
      }
    };
    barrier(c10d::BarrierOptions())->wait();  // all have connected
    return others;
  }

  /// Closes the connections: if a receive times out, Gloo closes all
  /// connections of its context. Each device has its own context, which the tag
  /// selects.
  void end_connections() {
    for (size_t i = 0; i < contexts_.size(); ++i) {
      const auto tag = std::numeric_limits<int>::max() - static_cast<int>(i);
      try {
        recvAnysource(nothing_, tag)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // Expected: the message does not arrive.
      }
    }
  }

  std::vector<c10::intrusive_ptr<c10d::Work>> running() {
    const std::lock_guard lock(workMutex_);
    std::vector<c10::intrusive_ptr<c10d::Work>> works(workQueue_.begin(),
                                                      workQueue_.end());
    std::copy_if(workInProgress_.begin(),
                 workInProgress_.end(),
                 std::back_inserter(works),
                 [](const auto& work) { return work.defined(); });
    return works;
  }

  std::vector<at::Tensor> nothing_{at::empty({1}, at::kByte)};
  c10::intrusive_ptr<GlooBackend> across_;  // null: one host, or no slice
  std::unique_ptr<SharedSums> sums_;
};

using Gloo = c10::intrusive_ptr<GlooBackend>;

/// Work that is done by the calls of its own rank.
class SharedWork : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds timeout) override {
    if (isCompleted()) {
      return Work::wait(timeout);
    }
    try {
      complete(timeout == kNoTimeout ? gloo_->timeout() : timeout);
    } catch (...) {
      finish(std::current_exception());
      throw;
    }
    finish();
    return true;
  }

 protected:
  SharedWork(Gloo gloo,
             const at::Tensor& tensor,
             c10d::OpType type,
             const char* title)
      : Work(gloo->getRank(), type, title, std::vector<at::Tensor>{tensor}),
        gloo_(std::move(gloo)),
        tensors_{tensor} {}

  virtual void complete(std::chrono::milliseconds timeout) = 0;

  const Gloo gloo_;
  std::vector<at::Tensor> tensors_;
};

/// A sum in shared memory, or over Gloo if a rank's tensor is not there.
class SumWork : public SharedWork {
 public:
  SumWork(const Gloo& gloo, const at::Tensor& tensor)
      : SharedWork(gloo, tensor, c10d::OpType::ALLREDUCE, "ddp:all_reduce"),
        number_(gloo_->sums()->start(tensor, gloo_->timeout())) {}

 protected:
  void complete(std::chrono::milliseconds timeout) override {
    if (!gloo_->sums()->finish(number_, timeout)) {
      gloo_->allreduce(tensors_)->wait(timeout);
    }
  }

 private:
  const SumNumber number_;
};

c10::intrusive_ptr<c10d::Work> gloo_broadcast(int source,
                                              GlooBackend& gloo,
                                              const at::Tensor& tensor) {
  c10d::BroadcastOptions options;
  options.rootRank = source;
  std::vector<at::Tensor> tensors{tensor};
  return gloo.broadcast(tensors, options);
}

/// A copy in shared memory, or over Gloo if the source got none.
class CopyWork : public SharedWork {
 public:
  CopyWork(const Gloo& gloo, int source, const at::Tensor& tensor)
      : SharedWork(gloo, tensor, c10d::OpType::BROADCAST, "ddp:broadcast"),
        source_(source) {}

 protected:
  void complete(std::chrono::milliseconds timeout) override {
    if (!gloo_->sums()->copy_from(source_, tensors_[0], timeout)) {
      gloo_broadcast(source_, *gloo_, tensors_[0])->wait(timeout);
    }
  }

 private:
  const int source_;
};

Gloo gloo_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return Gloo::reclaim_copy(&dynamic_cast<GlooBackend&>(*backend));
}

}  // namespace

bool may_be_working(c10d::Backend& backend) {
  auto* gloo = dynamic_cast<GlooBackend*>(&backend);
  return gloo == nullptr || gloo->is_working();
}

at::Tensor allocate_bucket(c10d::Backend& backend,
                           int64_t numel,
                           const at::TensorOptions& options) {
  auto* gloo = dynamic_cast<GlooBackend*>(&backend);
  return gloo != nullptr && gloo->sums() != nullptr
             ? gloo->sums()->allocate(numel, options)
             : at::Tensor();
}

bool shares_memory(c10d::Backend& backend) {
  auto* gloo = dynamic_cast<GlooBackend*>(&backend);
  return gloo != nullptr && gloo->sums() != nullptr;
}

c10::intrusive_ptr<c10d::Work> sum_bucket(
    const c10::intrusive_ptr<c10d::Backend>& backend,
    const at::Tensor& tensor) {
  return c10::make_intrusive<SumWork>(gloo_of(backend), tensor);
}

c10::intrusive_ptr<c10d::Work> copy_from_rank(
    const c10::intrusive_ptr<c10d::Backend>& backend,
    int source,
    const at::Tensor& tensor) {
  auto gloo = gloo_of(backend);
  if (gloo->sums()->is_one_host()) {
    return c10::make_intrusive<CopyWork>(gloo, source, tensor);
  }
  return gloo_broadcast(source, *gloo, tensor);
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec) {
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(spec.connect_timeout);
  options->devices = gloo_devices(spec.reach);
  // Threads of one group race in LibTorch, which notes the name of the last
  // collective without a lock: see docs/decisions.md.
  options->threads = static_cast<int>(options->devices.size());
  const auto backend = std::make_shared<c10::intrusive_ptr<c10d::Backend>>();
  connect_on_thread(
      [backend, options, spec] {
        auto gloo = c10::make_intrusive<GlooBackend>(
            spec.store, spec.rank, spec.size, options);
        gloo->share_memory(spec);
        *backend = std::move(gloo);
      },
      spec.in_vain,
      std::chrono::milliseconds::max(),  // Gloo has its own time-out
      "rank " + std::to_string(spec.rank) +
          ": the ranks could not be connected");
  (*backend)->setTimeout(spec.timeout);
  return *backend;
}

}  // namespace ddp::detail
