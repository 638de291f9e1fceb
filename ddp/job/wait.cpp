#include "ddp/job/wait.h"

#include <chrono>

#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"

namespace ddp::detail {
namespace {

/// Compares the text, because backends have no exception type for time-outs.
/// "Connection timed out" is the kernel's text for a peer that is gone.
bool is_timeout(const std::string& error) {
  const auto contains = [&](const char* words) {
    return error.find(words) != std::string::npos;
  };
  return (contains("imed out") || contains("imeout")) &&
         !contains("Connection timed out");
}

/// Throws if the group was aborted with a reason, or if a member has left. The
/// news may come after its effects.
void throw_cause(const MonitoredBackend& job,
                 const std::string& operation,
                 bool timed_out) {
  constexpr std::chrono::milliseconds kPause{20};
  const auto deadline =
      std::chrono::steady_clock::now() + (timed_out ? kPause : kNewsPatience);
  do {
    if (!job.abort_reason().empty()) {
      job.check_not_aborted(operation);
    }
    if (const auto departure = job.departed_member(kPause)) {
      job.fail(operation, *departure);
    }
  } while (job.is_open() && std::chrono::steady_clock::now() < deadline);
}

std::string timeout_error(const MonitoredBackend* job, const std::string& why) {
  const std::string limit =
      job == nullptr
          ? ""
          : " of " +
                std::to_string(static_cast<double>(job->timeout().count()) /
                               1000) +
                " s";
  return " timed out (" + why + "): the time-out" + limit +
         " of the group was over before all ranks had called it. Either one is "
         "slower than that, or the ranks no longer make the same calls";
}

}  // namespace

void fail_collective(const c10d::Backend& group,
                     const std::string& operation,
                     const std::string& why) {
  const auto* job = monitored_backend_of(group);
  const bool timed_out = is_timeout(why);
  if (job != nullptr) {
    throw_cause(*job, operation, timed_out);
  }
  check_not_aborted(group, operation);
  const int rank = job != nullptr ? job->world_rank() : group.getRank();
  TORCH_CHECK(!timed_out,
              "rank ",
              rank,
              ": ",
              operation,
              timeout_error(job, first_line(why)));
  TORCH_CHECK(false,
              "rank ",
              rank,
              ": ",
              operation,
              " failed, most likely because another rank has left: ",
              first_line(why),
              ". The rank that left first says why in its own output");
}

ActionList& wait_actions() {
  static auto* actions = new ActionList();
  return *actions;
}

GroupWaitScope::GroupWaitScope(const c10d::Backend& group,
                               const std::string& operation,
                               const c10d::Work* work)
    : waits_(operation),
      group_(const_cast<MonitoredBackend*>(monitored_backend_of(group))) {
  wait_actions().call();
  if (group_ != nullptr) {
    group_->begin_wait(work, operation);
  }
}

GroupWaitScope::~GroupWaitScope() {
  if (group_ != nullptr) {
    group_->end_wait();
  }
}

void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& operation) {
  try {
    const GroupWaitScope waits(group, operation, work.get());
    TORCH_CHECK(work->wait(), "the group was aborted");
  } catch (const std::exception& error) {
    fail_collective(group, operation, text_of(error));
  }
  // NCCL's wait only orders streams, and an abort ends it without an error. A
  // wait of Gloo that has returned has its result, also if a rank has left
  // since.
  if (group.getBackendName() == "nccl") {
    check_not_aborted(group, operation);
  }
}

void check_not_aborted(const c10d::Backend& group,
                       const std::string& operation) {
  if (const auto* job = monitored_backend_of(group)) {
    job->check_not_aborted(operation);
  }
}

at::Tensor copy_result(const at::Tensor& result,
                       c10::Device target,
                       const c10d::Backend& group,
                       const std::string& operation) {
  if (target == result.device()) {
    return result;
  }
  auto copy = [&] {
    const GroupWaitScope waits(group, operation);
    return result.to(target);
  }();
  check_not_aborted(group, operation);
  return copy;
}

void check_nobody_left(const c10d::Backend& group,
                       const std::string& operation) {
  if (const auto* job = monitored_backend_of(group)) {
    throw_cause(*job, operation, /*timed_out=*/false);
  }
}

}  // namespace ddp::detail
