#include "ddp/job/backends.h"

#include <sched.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddp/base/net/address.h"
#include "ddp/job/detail/connect_on_thread.h"

namespace ddp::detail {
namespace {

/// Sets the policy of the calling thread; returns false if a sandbox forbids
/// it.
bool set_policy(int policy) {
  const sched_param no_priority{};
  return ::sched_setscheduler(0, policy, &no_priority) == 0;
}

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

std::vector<GlooDevice> gloo_devices(const std::string& interface_hint) {
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
      local_address_towards(interface_hint)));
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

/// Adds to ProcessGroupGloo an abort, which it does not have.
class GlooBackend final : public c10d::ProcessGroupGloo {
  using Work = c10::intrusive_ptr<c10d::Work>;

 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void abort() override {
    end_connections();
    // If a connection ends during a send, Gloo never ends the send. The thread
    // of a collective sleeps until the time-out, but the waiting callers return
    // now.
    const auto error =
        std::make_exception_ptr(std::runtime_error("the group was aborted"));
    for (const auto& work : running()) {
      Ender::end(*work, error);
    }
    const std::lock_guard lock(messages_mutex_);
    for (const auto& message : messages_) {
      if (const auto work = message.lock()) {
        work->abort();
      }
    }
  }

  Work send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    auto work = ProcessGroupGloo::send(tensors, to, tag);
    const std::lock_guard lock(messages_mutex_);
    messages_.erase(
        std::remove_if(messages_.begin(),
                       messages_.end(),
                       [](const auto& message) { return message.expired(); }),
        messages_.end());
    messages_.emplace_back(work);
    return work;
  }

  bool is_working() { return !running().empty(); }

  /// Gloo's tag of a collective is a counter, which some collectives increment
  /// more than once. This tag has 16 bits of the hash as its upper half.
  void tag_next(size_t hash, uint64_t number) {
    constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
    constexpr uint64_t kTags = 4;  // of a collective
    collectiveCounter_ = static_cast<uint32_t>(hash * kMix >> 48) << 16 |
                         static_cast<uint32_t>(number * kTags & 0xFFFF);
  }

 private:
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

  std::vector<Work> running() {
    const std::lock_guard lock(workMutex_);
    std::vector<Work> works(workQueue_.begin(), workQueue_.end());
    std::copy_if(workInProgress_.begin(),
                 workInProgress_.end(),
                 std::back_inserter(works),
                 [](const auto& work) { return work.defined(); });
    return works;
  }

  std::mutex messages_mutex_;
  /// Works of `send`.
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> messages_;
  std::vector<at::Tensor> nothing_{at::empty({1}, at::kByte)};
};

}  // namespace

BatchThreadsGuard::BatchThreadsGuard()
    : is_batch_(::sched_getscheduler(0) == SCHED_OTHER &&
                set_policy(SCHED_BATCH)) {}

BatchThreadsGuard::~BatchThreadsGuard() {
  if (is_batch_) {
    set_policy(SCHED_OTHER);
  }
}

void tag_next_collective(c10d::Backend& backend, size_t hash, uint64_t number) {
  if (auto* gloo = dynamic_cast<GlooBackend*>(&backend)) {
    gloo->tag_next(hash, number);
  }
}

bool may_be_working(c10d::Backend& backend) {
  auto* gloo = dynamic_cast<GlooBackend*>(&backend);
  return gloo == nullptr || gloo->is_working();
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec) {
  if (!spec.guest) {
    ignore_broken_pipes();
  }
  auto options = c10d::ProcessGroupGloo::Options::create(spec.connect_timeout);
  options->devices = gloo_devices(spec.interface_hint);
  // One thread for each device: several threads of one group would have a data
  // race in LibTorch, see docs/decisions.md.
  options->threads = static_cast<int>(options->devices.size());
  const auto backend = std::make_shared<c10::intrusive_ptr<c10d::Backend>>();
  connect_on_thread(
      [backend, options, spec] {
        *backend = c10::make_intrusive<GlooBackend>(
            spec.store, spec.rank, spec.size, options);
      },
      spec.peer_failure,
      std::chrono::milliseconds::max(),  // Gloo has its own time-out
      "rank " + std::to_string(spec.rank) +
          ": the ranks could not be connected");
  (*backend)->setTimeout(spec.timeout);
  return *backend;
}

}  // namespace ddp::detail
