#include "ddp/job/monitored_store.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "ddp/base/backoff.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstGlance{50};
constexpr milliseconds kLongestGlance{1'000};
constexpr milliseconds kFirstCheckPause{1};
constexpr milliseconds kLongestCheckPause{250};

[[noreturn]] void throw_in_vain(const std::string& reason) {
  throw WaitInVain({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                   "Expected all ranks to take part, but " + reason);
}

}  // namespace

std::string reason_within(milliseconds patience, const VainCheck& why_in_vain) {
  if (!why_in_vain) {
    return "";
  }
  const auto deadline = steady_clock::now() + patience;
  std::string reason = why_in_vain();
  while (reason.empty() && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kFirstGlance);
    reason = why_in_vain();
  }
  return reason;
}

MonitoredStore::MonitoredStore(std::string prefix,
                               c10::intrusive_ptr<c10d::Store> store,
                               VainCheck why_in_vain)
    : PrefixStore(std::move(prefix), std::move(store)),
      why_in_vain_(std::move(why_in_vain)) {}

c10::intrusive_ptr<c10d::Store> MonitoredStore::clone() {
  return c10::make_intrusive<MonitoredStore>(
      prefix_, store_->clone(), why_in_vain_);
}

std::vector<uint8_t> MonitoredStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<uint8_t>> MonitoredStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void MonitoredStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

void MonitoredStore::wait(const std::vector<std::string>& keys,
                          const milliseconds& timeout) {
  const auto start = steady_clock::now();
  const auto deadline =
      timeout == kNoTimeout ? steady_clock::time_point::max() : start + timeout;
  // Polls, because LibTorch's own wait prints two lines on a time-out.
  Backoff check_pauses(kFirstCheckPause, kLongestCheckPause);
  Backoff glance_pauses(kFirstGlance, kLongestGlance);
  auto next_glance = start + glance_pauses.next();
  while (!has(keys)) {
    const auto now = steady_clock::now();
    if (now >= next_glance || now >= deadline) {
      if (const auto reason = why_in_vain_(); !reason.empty()) {
        throw_in_vain(reason);
      }
      next_glance = now + glance_pauses.next();
    }
    if (now >= deadline) {
      PrefixStore::wait(keys, milliseconds(1));  // throws the time-out
      return;
    }
    std::this_thread::sleep_until(
        std::min(now + check_pauses.next(), deadline));
  }
}

/// @throws WaitInVain, or the store's own error, if the store is gone.
bool MonitoredStore::has(const std::vector<std::string>& keys) {
  try {
    return PrefixStore::check(keys);
  } catch (const c10::Error&) {
    if (const auto reason = reason_within(kReasonPatience, why_in_vain_);
        !reason.empty()) {
      throw_in_vain(reason);
    }
    throw;
  }
}

}  // namespace ddp::detail
