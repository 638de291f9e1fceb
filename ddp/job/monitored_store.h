#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace ddp::detail {

/// Says why a wait for other ranks is in vain, one line, or "" while it is not.
using VainCheck = std::function<std::string()>;

/// Asks `why_in_vain` until it has a reason, at most for `patience`: a
/// connection breaks before the news of why.
std::string reason_within(std::chrono::milliseconds patience,
                          const VainCheck& why_in_vain);

/// How long an error of a connection waits for that news.
constexpr std::chrono::milliseconds kReasonPatience{2'000};

/// Thrown by a wait that is in vain.
struct WaitInVain : c10::Error {
  using c10::Error::Error;
};

/// A part of a store in which nobody waits for the keys of a rank that is gone:
/// where a key is missing, waits ask `why_in_vain` now and then (after 50 ms,
/// later once a second), and throw WaitInVain once it has a reason. They ask
/// it, too, when the store itself is gone. A key that is there is got, whoever
/// has left.
///
/// Thread contract: that of the store; `why_in_vain` is asked by the thread
/// that waits.
class MonitoredStore : public c10d::PrefixStore {
 public:
  MonitoredStore(std::string prefix,
                 c10::intrusive_ptr<c10d::Store> store,
                 VainCheck why_in_vain);

  c10::intrusive_ptr<c10d::Store> clone() override;

  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  bool has(const std::vector<std::string>& keys);

  VainCheck why_in_vain_;
};

/// Why it is in vain to wait for all ranks of the job of
/// `ddp::init_process_group`: one has died, or left because of an exception.
/// @throws c10::Error without a process group.
VainCheck job_vain_check();

}  // namespace ddp::detail
