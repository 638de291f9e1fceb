#include "ddp/reduce/detail/late_verdict.h"

#include "ddp/job/monitored_backend.h"

namespace ddp::detail {
namespace {

/// A rank that throws may be known a moment after its verdict.
constexpr std::chrono::milliseconds kThrowPatience{2'000};

std::string who_left(const PeerState* record) {
  const auto failure = record == nullptr
                           ? std::nullopt
                           : record->wait_for_failure(kThrowPatience);
  return failure ? ": " + describe(*failure, record->passes())
                 : "; it says so in its own output";
}

/// That of the job, where all its ranks make the passes.
std::shared_ptr<StopVote> vote_of(const c10d::Backend& group) {
  const auto* job = monitored_backend_of(group);
  if (job == nullptr || job->members().name != kWorldGroup) {
    return std::make_shared<StopVote>();
  }
  return {job->record(), &job->record()->stop_vote()};
}

std::string disagreement(const std::string& when, const PeerState* record) {
  return "Expected all ranks to agree on a backward pass before " + when +
         ", but one of them missed a gradient there, threw an exception or "
         "trains other parameters" +
         who_left(record) +
         ". The gradients of that pass were incomplete: start again from a "
         "checkpoint";
}

std::string problem_of(const Verdict& verdict,
                       const std::string& when,
                       const PeerState* record) {
  return verdict.is_crossed() ? crossed_error() : disagreement(when, record);
}

std::string unfinished(const PeerState* record) {
  return "Expected the last backward pass to have ended on the GPU before "
         "ddp::destroy_process_group(), but another rank is gone" +
         who_left(record) +
         ". The gradients of that pass are incomplete: start again from a "
         "checkpoint";
}

}  // namespace

LateVerdict::LateVerdict(const c10d::Backend& group,
                         const at::TensorOptions& elements)
    : state_(
          std::make_shared<State>(State{Verdict(elements, vote_of(group))})) {
  if (monitored_backend_of(group) == nullptr || elements.device().is_cpu()) {
    return;
  }
  record_ = peer_state_of(group);
  check_ = record_->add_check([state = state_, record = record_.get()](
                                  auto patience) -> std::string {
    const bool is_known = state->verdict.wait(patience);
    if (state->is_told || (is_known && state->verdict.is_good())) {
      return "";
    }
    return is_known ? problem_of(state->verdict, "the end of the job", record)
                    : unfinished(record);
  });
}

LateVerdict::~LateVerdict() {
  if (record_ && (state_->is_told || state_->verdict.is_settled())) {
    record_->remove_check(check_);
  }
}

std::string LateVerdict::error() {
  if (state_->is_told || state_->verdict.is_good()) {
    return "";
  }
  mark_told();
  return problem_of(state_->verdict, "this one", record_.get());
}

}  // namespace ddp::detail
