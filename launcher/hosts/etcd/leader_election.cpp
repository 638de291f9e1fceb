#include "launcher/hosts/etcd/leader_election.h"

#include <algorithm>
#include <utility>

#include "launcher/base/one_line.h"
#include "launcher/base/patience_text.h"

namespace launcher {
namespace {

using EtcdSeconds = std::chrono::seconds;

// Time for the last save of a host that ends.
constexpr std::chrono::seconds kLastSaveTime{5};
// Time that the job's state outlives its coordinator, for another host to take
// over.
constexpr EtcdSeconds kRecordTime{60};

LeaderElection::Action action_of(const RendezvousAnswer& answer) {
  return LeaderElection::Action(std::in_place_type<RendezvousAnswer>, answer);
}

LeaderElection::Actions combine(LeaderElection::Actions first,
                                LeaderElection::Actions second) {
  first.insert(first.end(),
               std::make_move_iterator(second.begin()),
               std::make_move_iterator(second.end()));
  return first;
}

/// The values in etcd, decoded.
struct KnownState {
  explicit KnownState(const EtcdAnswer& answer)
      : place(answer.coordinator ? decode_place(answer.coordinator->value)
                                 : std::nullopt),
        record(answer.record ? decode_job_state(answer.record->value)
                             : std::nullopt),
        is_valid(answer.coordinator.has_value() == place.has_value() &&
                 answer.record.has_value() == record.has_value()) {}

  std::optional<CoordinatorPlace> place;
  std::optional<EtcdJobState> record;
  bool is_valid;
};

}  // namespace

LeaderElection::Actions LeaderElection::begin(Time now) {
  now_ = now;
  if (phase_ != Phase::none) {
    return {};
  }
  seek();
  return start_call(EtcdCall::Kind::read);
}

void LeaderElection::seek() {
  phase_ = Phase::seeking;
  has_followed_answered_ = false;
  next_try_ = now_;
  give_up_ = now_ + options_.timeouts.join;
  news_.start(now_, options_.timeouts.first_news);
}

LeaderElection::Actions LeaderElection::on_answer(const EtcdAnswer& answer,
                                                  Time now) {
  now_ = now;
  if (!open_call_ || phase_ == Phase::over) {
    return {};
  }
  const EtcdCall call = *std::exchange(open_call_, std::nullopt);
  const bool is_answered =
      answer.outcome == Outcome::done || answer.outcome == Outcome::denied;
  Actions actions =
      is_answered ? on_answered_call(call, answer) : on_failed_call(answer);
  return combine(std::move(actions), perform_due());
}

LeaderElection::Actions LeaderElection::on_failed_call(
    const EtcdAnswer& answer) {
  const bool is_first = !has_met_ && phase_ == Phase::seeking;
  trouble_ = on_one_line(answer.text);
  next_try_ = now_ + backoff_.next();
  if (has_left_ && phase_ != Phase::leading) {
    phase_ = Phase::over;
  } else if (answer.outcome == Outcome::hopeless && is_first) {
    return fail(options_.etcd + ": " + trouble_);
  } else if (phase_ == Phase::leading && !news_.due()) {
    news_.start(now_, options_.timeouts.first_news);
  }
  return {};
}

LeaderElection::Actions LeaderElection::on_answered_call(
    const EtcdCall& call, const EtcdAnswer& answer) {
  const bool is_done = answer.outcome == Outcome::done;
  if (call.kind != EtcdCall::Kind::wait) {
    seen_revision_ = answer.revision;
  }
  trouble_.clear();
  backoff_.reset();
  if (has_ended_ && call.gives_up) {
    phase_ = Phase::over;
    return {};
  }
  if (call.kind == EtcdCall::Kind::campaign && is_done) {
    const bool is_new = phase_ != Phase::leading;
    become_leader(answer);
    return has_left_ ? Actions{}
           : is_new  ? Actions{Lead{saved_, earlier_host_}}
                     : Actions{Saved{}};
  }
  if (phase_ == Phase::leading && !is_done) {
    return campaign_again_or_resign(answer);
  }
  if (phase_ == Phase::leading) {
    news_.stop();
    if (call.kind == EtcdCall::Kind::save) {
      saved_ = sent_;
      unsaved_since_.reset();
      return {Saved{}};
    }
    next_renewal_ = now_ + options_.timeouts.keep_alive;
    renewed_ = called_at_;
    is_fenced_ = false;
    return {};
  }
  if (has_left_) {
    phase_ = Phase::over;  // its campaign was too late
    return {};
  }
  if (has_followed_answered_) {
    return {};
  }
  if (call.kind == EtcdCall::Kind::wait) {
    return start_call(EtcdCall::Kind::read);
  }
  const bool is_the_same = phase_ == Phase::following && answer.coordinator &&
                           answer.coordinator->revision == followed_revision_;
  return is_the_same ? start_call(EtcdCall::Kind::wait)
                     : follow_or_campaign(answer);
}

void LeaderElection::on_coordinator_answered() {
  if (phase_ == Phase::following) {
    has_followed_answered_ = true;
    news_.stop();
  }
}

LeaderElection::Actions LeaderElection::on_lost(Time now) {
  now_ = now;
  if (phase_ != Phase::following) {
    return {};
  }
  if (has_followed_answered_) {
    seek();
  }
  phase_ = Phase::seeking;
  next_try_ = now_;
  return start_call(EtcdCall::Kind::read);
}

LeaderElection::Actions LeaderElection::save(const EtcdJobState& state,
                                             Time now) {
  now_ = now;
  if (phase_ != Phase::leading || has_left_) {
    return {};
  }
  EtcdJobState next = state;
  next.job = saved_.job;
  next.writer = options_.id;
  next.host = options_.host;
  if (state_ == next) {
    return {};
  }
  state_ = next;
  if (!unsaved_since_) {
    unsaved_since_ = now_;
    if (news_.due()) {
      news_.start(now_,
                  options_.timeouts.first_news);  // the news is another one now
    }
  }
  next_try_ = now_;
  return perform_due();
}

void LeaderElection::leave() {
  has_left_ = true;
  news_.stop();
  const bool may_lead_yet =
      open_call_ && open_call_->kind == EtcdCall::Kind::campaign;
  if (phase_ != Phase::leading && !may_lead_yet) {
    phase_ = Phase::over;
  }
}

LeaderElection::Actions LeaderElection::end(Time now) {
  now_ = now;
  leave();
  if (!has_ended_) {
    has_ended_ = true;
    next_try_ = now_;
    give_up_ = now_ + kLastSaveTime;
  }
  return perform_due();
}

LeaderElection::Actions LeaderElection::on_time(Time now) {
  now_ = now;
  return perform_due();
}

LeaderElection::Actions LeaderElection::perform_due() {
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  const bool is_late = is_waiting() && now_ >= give_up_;
  if (has_ended_ && is_late) {
    phase_ = Phase::over;
    return {};
  }
  if (is_late || (unsaved_limit() && now_ >= *unsaved_limit())) {
    return fail(timeout_text());
  }
  Actions actions;
  if (is_watching_lease() && now_ >= fence_time()) {
    is_fenced_ = true;
    news_.start(now_,
                std::chrono::milliseconds(0));  // the news is another one now
    actions.push_back(Fence{});
  }
  if (news_.is_due(now_)) {
    news_.mark_printed(now_);
    const std::string text = news_text();
    if (!text.empty()) {
      actions.push_back(action_of(RendezvousNote{text}));
    }
  }
  if (open_call_ || now_ < next_try_ || !is_call_due()) {
    return actions;
  }
  if (phase_ != Phase::leading) {
    return combine(std::move(actions), start_call(EtcdCall::Kind::read));
  }
  EtcdCall call{.coordinator_revision = revision_, .leases = leases_};
  const bool saves = has_ended_ || (has_unsaved() && !is_fenced_);
  if (saves) {
    sent_ = state_;
    call.kind = EtcdCall::Kind::save;
    call.record = encode(sent_);
    call.gives_up = has_ended_;
  } else {
    call.kind = EtcdCall::Kind::renew;
  }
  return combine(std::move(actions), start_call(call));
}

/// Whether a call is to be made, once no call is open and next_try_ has come.
bool LeaderElection::is_call_due() const {
  if (phase_ != Phase::leading) {
    return phase_ == Phase::seeking || !has_followed_answered_;
  }
  return has_ended_ || has_unsaved() || is_fenced_ || now_ >= next_renewal_;
}

LeaderElection::Actions LeaderElection::start_call(EtcdCall::Kind kind) {
  return start_call({.kind = kind, .coordinator_revision = seen_revision_});
}

LeaderElection::Actions LeaderElection::start_call(const EtcdCall& call) {
  if (open_call_ && open_call_->kind != EtcdCall::Kind::wait) {
    return {};
  }
  open_call_ = call;
  called_at_ = now_;
  return {call};
}

LeaderElection::Actions LeaderElection::fail(const std::string& text) {
  phase_ = Phase::over;
  return {action_of(RendezvousLost{text})};
}

/// Handles the values in etcd on a host that does not lead.
LeaderElection::Actions LeaderElection::follow_or_campaign(
    const EtcdAnswer& answer) {
  const KnownState known(answer);
  const auto& [place, record, is_valid] = known;
  if (!is_valid) {
    return fail(
        options_.etcd +
        ": what is there under this job's --rdzv-id is not ddprun's, or of "
        "another version; give another id, or start the same ddprun on all "
        "hosts");
  }
  if (record && record->job == options_.id) {
    job_ = options_.id;  // this host began the job, but the answer was lost
  }
  if (record && record->closed && record->job == job_) {
    phase_ = Phase::over;
    return {action_of(*record->closed)};
  }
  if (place && place->id != options_.id) {
    phase_ = Phase::following;
    has_met_ = true;
    has_followed_answered_ = false;
    // If this host was away for longer than its job's state stays in etcd, it
    // goes on in the job that began meanwhile.
    job_ = record ? record->job : job_;
    followed_revision_ = answer.coordinator->revision;
    followed_host_ = place->host;
    return combine({Follow{*place}}, start_call(EtcdCall::Kind::wait));
  }
  phase_ = Phase::seeking;
  // Without a state in etcd, or with the state of a closed job, another job
  // begins. Its generations begin at 0.
  EtcdJobState next;
  next.job = options_.id;
  if (record && !record->closed) {
    next = *record;
  }
  earlier_host_ = next.host;
  return campaign(answer, next);
}

/// Handles a denied call on the host that leads.
LeaderElection::Actions LeaderElection::campaign_again_or_resign(
    const EtcdAnswer& answer) {
  const KnownState known(answer);
  const bool is_place_free =
      !answer.coordinator || (known.place && known.place->id == options_.id);
  const bool is_as_left =
      !answer.record || (known.record && known.record->writer == options_.id);
  if (is_place_free && is_as_left) {
    return campaign(answer, state_);
  }
  unsaved_since_.reset();
  if (has_left_) {
    phase_ = Phase::over;
    return {};
  }
  seek();
  return combine({Resign{}}, follow_or_campaign(answer));
}

LeaderElection::Actions LeaderElection::campaign(const EtcdAnswer& seen,
                                                 const EtcdJobState& state) {
  const EtcdSeconds lease = std::chrono::ceil<EtcdSeconds>(options_.lease);
  sent_ = state;
  sent_.writer = options_.id;
  sent_.host = options_.host;
  return start_call({.kind = EtcdCall::Kind::campaign,
                     .record = encode(sent_),
                     .coordinator_revision =
                         seen.coordinator ? seen.coordinator->revision : 0,
                     .record_revision = seen.record ? seen.record->revision : 0,
                     .coordinator_time = lease,
                     .record_time = kRecordTime + lease});
}

void LeaderElection::become_leader(const EtcdAnswer& answer) {
  const bool is_new = phase_ != Phase::leading;
  phase_ = Phase::leading;
  has_met_ = true;
  revision_ = answer.revision;
  leases_ = answer.leases;
  saved_ = sent_;
  job_ = saved_.job;
  state_ = is_new ? saved_ : state_;
  unsaved_since_ = has_unsaved() ? unsaved_since_ : std::nullopt;
  next_renewal_ = now_ + options_.timeouts.keep_alive;
  renewed_ = called_at_;
  is_fenced_ = false;
  news_.stop();
}

std::optional<LeaderElection::Time> LeaderElection::next_deadline() const {
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return std::nullopt;
  }
  std::optional<Time> next = news_.due();
  const auto consider = [&](Time time) {
    next = std::min(next.value_or(time), time);
  };
  if (is_waiting()) {
    consider(give_up_);
  }
  if (unsaved_limit()) {
    consider(*unsaved_limit());
  }
  if (is_watching_lease()) {
    consider(fence_time());
  }
  if (!open_call_ && is_call_due()) {
    consider(next_try_);
  } else if (!open_call_ && phase_ == Phase::leading) {
    consider(std::max(next_renewal_, next_try_));
  }
  return next;
}

std::optional<LeaderElection::Time> LeaderElection::unsaved_limit() const {
  return phase_ == Phase::leading && !has_left_ && unsaved_since_
             ? std::optional(*unsaved_since_ + options_.timeouts.join)
             : std::nullopt;
}

bool LeaderElection::is_waiting() const {
  return has_ended_ || phase_ == Phase::seeking ||
         (phase_ == Phase::following && !has_followed_answered_);
}

std::string LeaderElection::timeout_text() const {
  const std::string seconds = patience_text(options_.timeouts.join);
  if (!trouble_.empty()) {
    return options_.etcd + " has not answered for " + seconds + ": " + trouble_;
  }
  return followed_host_.empty()
             ? options_.etcd + " has not answered in " + seconds +
                   "; check that etcd runs there, --rdzv-endpoint and the "
                   "firewall, or give it more time (--rdzv-conf join_timeout)"
             : "host " + followed_host_ + ", which coordinates this job by " +
                   options_.etcd + ", cannot be reached, and for " + seconds +
                   " no other one has taken over; check the network between "
                   "the hosts, or give --local-addr";
}

std::string LeaderElection::news_text() const {
  const std::string end =
      "; gives up" + in_seconds(unsaved_limit().value_or(give_up_) - now_) +
      " (--rdzv-conf join_timeout)";
  if (phase_ == Phase::leading) {
    return trouble_.empty()
               ? ""
               : options_.etcd + " does not answer (" + trouble_ + "); " +
                     (unsaved_since_
                          ? "a change of the job's hosts waits for it" + end
                      : is_fenced_
                          ? "the workers stop until it does, since another "
                            "host may take the job over meanwhile"
                          : "the job goes on for" +
                                in_seconds(fence_time() - now_).substr(3) +
                                " (--rdzv-conf lease_timeout), but its hosts "
                                "cannot change until it does");
  }
  const std::string& host = followed_host_;
  return "waiting for " +
         (!trouble_.empty() ? options_.etcd + " (" + trouble_ + ")"
          : host.empty()
              ? options_.etcd
              : "host " + host + ", which coordinates this job by " +
                    options_.etcd + ", or for the end of its lease") +
         end;
}

}  // namespace launcher
