#include "ddp/reduce/detail/pass_agreement.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "ddp/job/monitored_backend.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/join_stream.h"
#include "ddp/tensors/keep_until_read.h"

namespace ddp::detail {
namespace {

/// A rank that throws may be known a moment after the sums of its pass.
constexpr std::chrono::milliseconds kThrowPatience{2'000};

void append_to_list(std::string& list, const std::string& text) {
  list += (list.empty() ? "" : ", ") + text;
}

uint16_t hash_of(const std::vector<size_t>& indices) {
  size_t hash = 0;
  for (const size_t index : indices) {
    hash = c10::hash_combine(hash, index + 1);
  }
  // The high bits of a product depend on all bits of its factors.
  return static_cast<uint16_t>((uint64_t{hash} * 0x9e3779b97f4a7c15) >> 48);
}

/// The vote of the job if all its ranks make the passes.
std::shared_ptr<StopVote> vote_of(const c10d::Backend& group) {
  const auto* job = monitored_backend_of(group);
  if (job == nullptr || job->members().name != kWorldGroup) {
    return std::make_shared<StopVote>();
  }
  return {job->record(), &job->record()->stop_vote()};
}

std::string describe_departure(const PeerState* peers) {
  const auto failure =
      peers == nullptr ? std::nullopt : peers->wait_for_failure(kThrowPatience);
  return failure ? ": " + describe(*failure, peers->passes())
                 : "; it says so in its own output";
}

std::string error_of(const StatusSums& sums,
                     const std::string& when,
                     const PeerState* peers) {
  return sums.met_other_reducer()
             ? crossed_error()
             : disagreement_error(when, describe_departure(peers));
}

bool any_has(const std::vector<PassReport>& reports,
             std::string PassReport::*field) {
  return std::any_of(
      reports.begin(), reports.end(), [field](const PassReport& report) {
        return !(report.*field).empty();
      });
}

at::Tensor make_used_map(int64_t parameters,
                         const std::vector<size_t>& without) {
  auto map = at::ones({parameters}, at::kFloat);
  for (const size_t index : without) {
    map.mutable_data_ptr<float>()[index] = 0;
  }
  return map;
}

/// Parameters that no rank used. Waits for a GPU.
std::vector<size_t> unused_in(const at::Tensor& map_sums) {
  const auto used = map_sums.ne(0).cpu();
  std::vector<size_t> unused;
  for (int64_t i = 0; i < used.numel(); ++i) {
    if (!used.const_data_ptr<bool>()[i]) {
      unused.push_back(static_cast<size_t>(i));
    }
  }
  return unused;
}

}  // namespace

void PassStatus::add_changed(const std::string& name_and_count) {
  append_to_list(changed, name_and_count);
}

void PassStatus::add_late(const std::string& name) {
  append_to_list(late, name);
}

bool PassStatus::has_failed(bool missing_fails) const {
  return (missing_fails && !missing.empty() && !is_shadow) ||
         !changed.empty() || !late.empty() || !failure.empty();
}

/// One bit is enough for the steps: ranks part by one step first.
Stamp PassStatus::stamp() const {
  const auto last_bits = static_cast<uint8_t>(reducer & 0xf);
  if (is_shadow) {
    return {0, false, false, last_bits};
  }
  const int64_t steps = without_step.value_or(0) & 1;
  return {static_cast<uint16_t>((hash_of(frozen) << 1) | steps),
          without_step.has_value(),
          true,
          last_bits};
}

void PassStatus::reset() {
  missing.clear();
  changed.clear();
  late.clear();
  is_shadow = false;
}

/// One element per parameter, 0 if it is unused, followed by the status.
class PassAgreement::UsedMap {
 public:
  UsedMap(size_t parameters, c10::Device device)
      : size_(static_cast<int64_t>(parameters)),
        mine_(at::ones({size_ + StatusSums::kNumel},
                       at::TensorOptions(at::kFloat).device(device))),
        sums_(at::empty_like(mine_)),
        made_on_(current_stream(device)) {}

  /// Puts this rank's map into `sums`.
  void write(std::vector<size_t> without) {
    join_stream(made_on_);
    // On a GPU a new map stalls the host, so it is only made if it changes.
    if (without != without_) {
      mine_.narrow(0, 0, size_).copy_(make_used_map(size_, without));
      without_ = std::move(without);
    }
    sums_.copy_(mine_);
  }

  /// Keeps the memory until the ranks have received the map of this pass.
  void keep_memory() const {
    keep_until_read(mine_);
    keep_until_read(sums_);
  }

  const at::Tensor& sums() const { return sums_; }
  at::Tensor status() const {
    return sums_.narrow(0, size_, StatusSums::kNumel);
  }
  std::vector<size_t> unused() const {
    return unused_in(sums_.narrow(0, 0, size_));
  }

 private:
  int64_t size_;
  std::vector<size_t> without_;  // zero in mine_
  at::Tensor mine_;              // this rank's
  at::Tensor sums_;              // over ranks
  c10::Stream made_on_;          // may still work on the memory of both
};

PassAgreement::PassAgreement(c10::intrusive_ptr<c10d::Backend> group,
                             const GradientBuckets& buckets,
                             UnusedMode mode)
    : group_(std::move(group)),
      buckets_(buckets),
      mode_(mode),
      sends_map_(
          mode == UnusedMode::find ||
          (mode == UnusedMode::find_on_demand && !buckets.spare().is_cpu())),
      sums_(std::make_shared<StatusSums>(buckets.spare().device(),
                                         vote_of(*group_))) {
  if (mode == UnusedMode::find || mode == UnusedMode::find_on_demand) {
    map_ = std::make_unique<UsedMap>(buckets.size(), buckets.spare().device());
  }
  add_check();
}

/// Sums that are not known yet, or a disagreement, are left to the check.
PassAgreement::~PassAgreement() {
  if (sums_->is_settled()) {
    remove_check();
  }
}

/// On a GPU of a job: ddp::destroy_process_group() asks for the last passes.
void PassAgreement::add_check() {
  if (monitored_backend_of(*group_) == nullptr || buckets_.spare().is_cpu()) {
    return;
  }
  peer_state_ = peer_state_of(*group_);
  check_ = peer_state_->add_check(
      [sums = sums_, peers = peer_state_.get()](auto patience) -> std::string {
        if (!sums->wait(patience)) {
          return unfinished_error(describe_departure(peers));
        }
        return sums->all_agree() ? ""
                                 : error_of(*sums, "the end of the job", peers);
      });
}

/// Nothing is left to say: the program knows, or all is well.
void PassAgreement::remove_check() {
  if (peer_state_) {
    peer_state_->remove_check(check_);
  }
}

std::vector<size_t> PassAgreement::learn_unused(const PassStatus& status) {
  if (mode_ == UnusedMode::learn) {
    std::vector<at::Tensor> map{
        make_used_map(static_cast<int64_t>(buckets_.size()),
                      without_gradient(status))
            .to(buckets_.spare().device())};
    wait(group_->allreduce(map), *group_, "all-reduce of the used map");
    unused_ = unused_in(map[0]);
  }
  return unused_;
}

void PassAgreement::write_status(const PassStatus& status) {
  if (sends_map_) {
    return;
  }
  buckets_.join_spare();
  sums_->write(
      buckets_.spare(), status.stamp(), status.has_failed(missing_fails()));
}

void PassAgreement::start() {
  if (!sends_map_ && !buckets_.spare_in_bucket()) {
    std::vector<at::Tensor> tensors{buckets_.spare()};
    work_ = group_->allreduce(tensors);
  }
}

PassOutcome PassAgreement::finish(const PassStatus& status) {
  const bool on_demand = mode_ == UnusedMode::find_on_demand;
  if (sends_map_) {
    if (on_demand && !status.missing.empty() && !status.is_shadow &&
        !std::exchange(has_warned_, true)) {
      TORCH_WARN(
          "Rank ",
          group_->getRank(),
          " got no gradient for ",
          names_of(status.missing),
          " in a backward pass, which find_unused_on_demand(true) allows "
          "in this one and in all later ones");
    }
    return finish_with_map(status);
  }
  const auto work = std::exchange(work_, nullptr);
  if (work) {
    wait(work, *group_, "all-reduce of the ranks' status");
  }
  sums_->read(buckets_.spare());
  if (work) {
    // Made on another stream, and may be released before the ranks receive it.
    keep_until_read(buckets_.spare());
  }
  auto outcome = conclude(status, missing_fails());
  // An error that is not final is a missing gradient, known on all ranks.
  if (on_demand && !outcome.error.empty() && !outcome.is_final) {
    if (!std::exchange(has_warned_, true) && group_->getRank() == 0) {
      TORCH_WARN(outcome.error,
                 ". find_unused_on_demand(true) took them as unused, as it "
                 "will in later passes, of which nothing is said");
    }
    return finish_with_map(status);
  }
  outcome.unused = unused_;
  return outcome;
}

PassOutcome PassAgreement::finish_with_map(const PassStatus& status) {
  map_->write(without_gradient(status));
  sums_->write(map_->status(), status.stamp(), status.has_failed(false));
  std::vector<at::Tensor> tensors{map_->sums()};
  wait(group_->allreduce(tensors), *group_, "all-reduce of the used map");
  sums_->read(map_->status());
  map_->keep_memory();
  auto outcome = conclude(status, /*missing_fails=*/false);
  const bool uses_all = status.missing.empty() && status.frozen.empty();
  if (outcome.error.empty() && !uses_all) {
    outcome.unused = map_->unused();
  }
  return outcome;
}

/// What follows from the sums of the pass, which have been read.
PassOutcome PassAgreement::conclude(const PassStatus& status,
                                    bool missing_fails) {
  const bool knows_sums = buckets_.spare().is_cpu();
  if (knows_sums ? sums_->all_agree() : !status.has_failed(missing_fails)) {
    return {};
  }
  PassOutcome outcome;
  if (knows_sums && sums_->met_other_reducer()) {
    outcome.error = crossed_error();  // nor would the ranks' reports meet
    outcome.is_final = true;
    return outcome;
  }
  const auto reports = gather_reports(report_of(status, missing_fails));
  outcome.error = pass_error(reports);
  // A missing gradient alone parts no ranks that all know of it.
  outcome.is_final = !knows_sums || any_has(reports, &PassReport::failure) ||
                     !any_has(reports, &PassReport::missing);
  return outcome;
}

/// On a GPU without the other ranks': they do not know yet, so they cannot be
/// asked.
std::vector<PassReport> PassAgreement::gather_reports(const PassReport& mine) {
  const auto device = buckets_.spare().device();
  std::vector<PassReport> reports(group_->getSize());
  if (!device.is_cpu()) {
    remove_check();
    reports[group_->getRank()] = mine;
    return reports;
  }
  sums_->forget_disagreement();
  const auto texts = all_gather_text(*group_, device, to_text(mine));
  std::transform(texts.begin(), texts.end(), reports.begin(), parse_report);
  return reports;
}

PassReport PassAgreement::report_of(const PassStatus& status,
                                    bool missing_fails) const {
  if (status.is_shadow) {
    return {0, 0, "", "", status.failure, "", ""};
  }
  return {status.number,
          status.without_step.value_or(0),
          missing_fails ? names_of(status.missing) : "",
          names_of(status.frozen),
          status.failure,
          status.changed,
          status.late};
}

std::string PassAgreement::names_of(const std::vector<size_t>& indices) const {
  std::string names;
  for (const size_t index : indices) {
    append_to_list(names, buckets_.parameter(index).name);
  }
  return names;
}

/// Parameters that got no gradient in this pass, and have none of an earlier
/// pass of this rank alone either.
std::vector<size_t> PassAgreement::without_gradient(
    const PassStatus& status) const {
  std::vector<size_t> without;
  for (const auto* indices : {&status.missing, &status.frozen}) {
    for (const size_t index : *indices) {
      if (!buckets_.has_local(index) ||
          !buckets_.parameter(index).tensor.grad().defined()) {
        without.push_back(index);
      }
    }
  }
  return without;
}

std::string PassAgreement::late_error() {
  if (sums_->all_agree()) {
    return "";
  }
  remove_check();
  return error_of(*sums_, "this one", peer_state_.get());
}

}  // namespace ddp::detail
