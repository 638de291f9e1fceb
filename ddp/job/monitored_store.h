#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace ddp::detail {

/// Returns why a wait for other ranks cannot succeed, in one line, or "" while
/// it can.
using VainCheck = std::function<std::string()>;

/// Calls `why_in_vain` until it returns a reason, for `patience` at most. A
/// connection to a lost rank breaks before the report of the loss arrives.
std::string reason_within(std::chrono::milliseconds patience,
                          const VainCheck& why_in_vain);

/// Time limit for this report, before a connection error is thrown.
constexpr std::chrono::milliseconds kReasonPatience{2'000};

/// Thrown by a wait that cannot succeed.
struct WaitInVain : c10::Error {
  using c10::Error::Error;
};

/// A part of a store whose waits end when a rank is lost. A wait for a missing
/// key calls `why_in_vain` after 50 ms and later once a second, and throws
/// WaitInVain as soon as a reason is returned. A wait does the same if its
/// store is gone. A key that exists is returned even if a rank has left.
///
/// Thread contract: as the wrapped store. The waiting thread calls
/// `why_in_vain`.
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

/// Returns the check for all ranks of the job of `ddp::init_process_group`: its
/// reason is a rank that has died, or left because of an exception.
/// @throws c10::Error without a process group.
VainCheck job_vain_check();

}  // namespace ddp::detail
