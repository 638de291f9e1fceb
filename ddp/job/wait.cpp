#include "ddp/job/wait.h"

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"

namespace ddp::detail {
namespace {

/// Compares the text, because backends have no exception type for time-outs.
bool is_timeout(const std::string& error) {
  return error.find("imed out") != std::string::npos ||
         error.find("imeout") != std::string::npos;
}

std::optional<Departure> cause_of(const MonitoredBackend* job, bool timed_out) {
  if (job == nullptr) {
    return std::nullopt;
  }
  return job->record()->wait_for_departure(
      job->members().ranks,
      timed_out ? std::chrono::milliseconds(0) : kNewsPatience);
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
                     const std::string& what,
                     const std::string& why) {
  const auto* job = monitored_backend_of(group);
  const bool timed_out = is_timeout(why);
  if (const auto departure = cause_of(job, timed_out)) {
    job->fail(what, *departure);
  }
  check_whole(group, what);
  TORCH_CHECK(!timed_out,
              "rank ",
              group.getRank(),
              ": ",
              what,
              timeout_error(job, first_line(why)));
  TORCH_CHECK(false,
              "rank ",
              group.getRank(),
              ": ",
              what,
              " failed, most likely because another rank has left: ",
              first_line(why),
              ". The rank that left first says why in its own output");
}

void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& what) {
  try {
    const RankWaitScope waits(what);
    work->wait();
  } catch (const std::exception& error) {
    fail_collective(group, what, text_of(error));
  }
  // NCCL's wait only orders streams, and an abort ends it without an error.
  check_whole(group, what);
}

void check_whole(const c10d::Backend& group, const std::string& what) {
  if (const auto* job = monitored_backend_of(group)) {
    job->check_whole(what);
  }
}

at::Tensor copy_result(const at::Tensor& result,
                       c10::Device target,
                       const c10d::Backend& group,
                       const std::string& what) {
  auto copy = result.to(target);
  if (target != result.device()) {
    check_whole(group, what);
  }
  return copy;
}

void check_nobody_left(const c10d::Backend& group, const std::string& what) {
  const auto* job = monitored_backend_of(group);
  if (const auto departure = cause_of(job, /*timed_out=*/false)) {
    job->fail(what, *departure);
  }
}

}  // namespace ddp::detail
