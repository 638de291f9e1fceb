#include "launcher/hosts/etcd/leader_election.h"

#include <algorithm>
#include <utility>

#include "launcher/base/one_line.h"
#include "launcher/base/patience_text.h"

namespace launcher {
namespace {

using EtcdSeconds = std::chrono::seconds;

constexpr std::chrono::milliseconds kBetweenCalls{500};
// What ends waits so long for its last words to be written.
constexpr std::chrono::seconds kLastWords{5};
// The record outlives its coordinator by so long, for another host to come.
constexpr EtcdSeconds kRecordTime{60};

LeaderElection::Action saying(const RendezvousAnswer& answer) {
  return LeaderElection::Action(std::in_place_type<RendezvousAnswer>, answer);
}

LeaderElection::Actions both(LeaderElection::Actions first,
                             LeaderElection::Actions second) {
  first.insert(first.end(),
               std::make_move_iterator(second.begin()),
               std::make_move_iterator(second.end()));
  return first;
}

/// What etcd has, decoded.
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
  return ask_for(EtcdCall::Kind::read);
}

void LeaderElection::seek() {
  phase_ = Phase::seeking;
  was_heard_ = false;
  next_try_ = now_;
  give_up_ = now_ + options_.patience.join;
  news_.start(now_, options_.patience.first_news);
}

LeaderElection::Actions LeaderElection::on_answer(const EtcdAnswer& answer,
                                                  Time now) {
  now_ = now;
  if (!asked_ || phase_ == Phase::over) {
    return {};
  }
  const EtcdCall call = *std::exchange(asked_, std::nullopt);
  const bool is_answered =
      answer.outcome == Outcome::done || answer.outcome == Outcome::denied;
  Actions actions =
      is_answered ? on_answered(call, answer) : on_trouble(answer);
  return both(std::move(actions), act());
}

LeaderElection::Actions LeaderElection::on_trouble(const EtcdAnswer& answer) {
  const bool is_first = !was_reached_ && phase_ == Phase::seeking;
  trouble_ = on_one_line(answer.text);
  next_try_ = now_ + kBetweenCalls;
  if (has_left_ && phase_ != Phase::hosting) {
    phase_ = Phase::over;
  } else if (answer.outcome == Outcome::hopeless && is_first) {
    return lose(options_.etcd + ": " + trouble_);
  } else if (phase_ == Phase::hosting && !news_.due()) {
    news_.start(now_, options_.patience.first_news);
  }
  return {};
}

LeaderElection::Actions LeaderElection::on_answered(const EtcdCall& call,
                                                    const EtcdAnswer& answer) {
  const bool is_done = answer.outcome == Outcome::done;
  was_reached_ = true;
  trouble_.clear();
  if (has_ended_ && call.gives_up) {
    phase_ = Phase::over;
    return {};
  }
  if (call.kind == EtcdCall::Kind::campaign && is_done) {
    const bool is_new = phase_ != Phase::hosting;
    become_leader(answer);
    return has_left_ ? Actions{}
           : is_new  ? Actions{Host{saved_, earlier_host_}}
                     : Actions{Saved{}};
  }
  if (phase_ == Phase::hosting && !is_done) {
    return consider_own(answer);
  }
  if (phase_ == Phase::hosting) {
    news_.stop();
    if (call.kind == EtcdCall::Kind::save) {
      saved_ = sent_;
      unsaved_since_.reset();
      return {Saved{}};
    }
    next_renewal_ = now_ + options_.patience.keep_alive;
    renewed_ = asked_at_;
    is_fenced_ = false;
    return {};
  }
  if (has_left_) {
    phase_ = Phase::over;  // its campaign came too late
    return {};
  }
  if (was_heard_) {
    return {};
  }
  if (call.kind == EtcdCall::Kind::wait) {
    return ask_for(EtcdCall::Kind::read);
  }
  const bool is_the_same = phase_ == Phase::following && answer.coordinator &&
                           answer.coordinator->revision == followed_;
  return is_the_same ? ask_for(EtcdCall::Kind::wait) : consider(answer);
}

void LeaderElection::on_heard() {
  if (phase_ == Phase::following) {
    was_heard_ = true;
    news_.stop();
  }
}

LeaderElection::Actions LeaderElection::on_lost(Time now) {
  now_ = now;
  if (phase_ != Phase::following) {
    return {};
  }
  if (was_heard_) {
    seek();
  }
  phase_ = Phase::seeking;
  next_try_ = now_;
  return ask_for(EtcdCall::Kind::read);
}

LeaderElection::Actions LeaderElection::on_record(const EtcdJobState& record,
                                                  Time now) {
  now_ = now;
  if (phase_ != Phase::hosting || has_left_) {
    return {};
  }
  EtcdJobState next = record;
  next.job = saved_.job;
  next.writer = options_.id;
  next.host = options_.host;
  if (record_ == next) {
    return {};
  }
  record_ = next;
  if (!unsaved_since_) {
    unsaved_since_ = now_;
    if (news_.due()) {
      news_.start(now_, options_.patience.first_news);  // it is other news now
    }
  }
  next_try_ = now_;
  return act();
}

void LeaderElection::leave() {
  has_left_ = true;
  news_.stop();
  const bool may_lead_yet = asked_ && asked_->kind == EtcdCall::Kind::campaign;
  if (phase_ != Phase::hosting && !may_lead_yet) {
    phase_ = Phase::over;
  }
}

LeaderElection::Actions LeaderElection::end(Time now) {
  now_ = now;
  leave();
  if (!has_ended_) {
    has_ended_ = true;
    next_try_ = now_;
    give_up_ = now_ + kLastWords;
  }
  return act();
}

LeaderElection::Actions LeaderElection::on_time(Time now) {
  now_ = now;
  return act();
}

LeaderElection::Actions LeaderElection::act() {
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  const bool is_late = is_waiting() && now_ >= give_up_;
  if (has_ended_ && is_late) {
    phase_ = Phase::over;
    return {};
  }
  if (is_late || (unsaved_limit() && now_ >= *unsaved_limit())) {
    return lose(late_text());
  }
  Actions actions;
  if (is_watching_lease() && now_ >= fence_time()) {
    is_fenced_ = true;
    news_.start(now_, std::chrono::milliseconds(0));  // it is other news now
    actions.push_back(Fence{});
  }
  if (news_.is_due(now_)) {
    news_.said(now_);
    const std::string text = news_text();
    if (!text.empty()) {
      actions.push_back(saying(RendezvousNote{text}));
    }
  }
  if (asked_ || now_ < next_try_ || !is_call_due()) {
    return actions;
  }
  if (phase_ != Phase::hosting) {
    return both(std::move(actions), ask_for(EtcdCall::Kind::read));
  }
  EtcdCall call{.coordinator_revision = revision_, .leases = leases_};
  const bool saves = has_ended_ || (has_unsaved() && !is_fenced_);
  if (saves) {
    sent_ = record_;
    call.kind = EtcdCall::Kind::save;
    call.record = encode(sent_);
    call.gives_up = has_ended_;
  } else {
    call.kind = EtcdCall::Kind::renew;
  }
  return both(std::move(actions), ask(call));
}

/// Once nothing is asked, and not before next_try_.
bool LeaderElection::is_call_due() const {
  if (phase_ != Phase::hosting) {
    return phase_ == Phase::seeking || !was_heard_;
  }
  return has_ended_ || has_unsaved() || is_fenced_ || now_ >= next_renewal_;
}

LeaderElection::Actions LeaderElection::ask_for(EtcdCall::Kind kind) {
  return ask({.kind = kind, .coordinator_revision = followed_});
}

LeaderElection::Actions LeaderElection::ask(const EtcdCall& call) {
  if (asked_ && asked_->kind != EtcdCall::Kind::wait) {
    return {};
  }
  asked_ = call;
  asked_at_ = now_;
  return {call};
}

LeaderElection::Actions LeaderElection::lose(const std::string& text) {
  phase_ = Phase::over;
  return {saying(RendezvousLost{text})};
}

/// Of a host that does not coordinate.
LeaderElection::Actions LeaderElection::consider(const EtcdAnswer& answer) {
  const KnownState known(answer);
  const auto& [place, record, is_valid] = known;
  if (!is_valid) {
    return lose(
        options_.etcd +
        ": what is there under this job's --rdzv-id is not ddprun's, or of "
        "another version; give another id, or start the same ddprun on all "
        "hosts");
  }
  if (record && record->job == options_.id) {
    job_ = options_.id;  // we began it, though the answer was lost
  }
  if (record && record->closed && record->job == job_) {
    phase_ = Phase::over;
    return {saying(*record->closed)};
  }
  if (place && place->id != options_.id) {
    phase_ = Phase::following;
    was_heard_ = false;
    // A host that was away for longer than its job's record goes on in the job
    // that began meanwhile.
    job_ = record ? record->job : job_;
    followed_ = answer.coordinator->revision;
    followed_host_ = place->host;
    return both({Follow{*place}}, ask_for(EtcdCall::Kind::wait));
  }
  phase_ = Phase::seeking;
  // Where there is no record, or one that has ended, another run begins: its
  // generations begin anew.
  EtcdJobState next;
  next.job = options_.id;
  if (record && !record->closed) {
    next = *record;
  }
  earlier_host_ = next.host;
  return campaign(answer, next);
}

/// Of the host that coordinates, or did.
LeaderElection::Actions LeaderElection::consider_own(const EtcdAnswer& answer) {
  const KnownState known(answer);
  const bool is_place_free =
      !answer.coordinator || (known.place && known.place->id == options_.id);
  const bool is_as_left =
      !answer.record || (known.record && known.record->writer == options_.id);
  if (is_place_free && is_as_left) {
    return campaign(answer, record_);
  }
  unsaved_since_.reset();
  if (has_left_) {
    phase_ = Phase::over;
    return {};
  }
  seek();
  return both({Resign{}}, consider(answer));
}

LeaderElection::Actions LeaderElection::campaign(const EtcdAnswer& seen,
                                                 const EtcdJobState& record) {
  const EtcdSeconds lease = std::chrono::ceil<EtcdSeconds>(options_.lease);
  sent_ = record;
  sent_.writer = options_.id;
  sent_.host = options_.host;
  return ask({.kind = EtcdCall::Kind::campaign,
              .record = encode(sent_),
              .coordinator_revision =
                  seen.coordinator ? seen.coordinator->revision : 0,
              .record_revision = seen.record ? seen.record->revision : 0,
              .coordinator_time = lease,
              .record_time = kRecordTime + lease});
}

void LeaderElection::become_leader(const EtcdAnswer& answer) {
  const bool is_new = phase_ != Phase::hosting;
  phase_ = Phase::hosting;
  revision_ = answer.revision;
  leases_ = answer.leases;
  saved_ = sent_;
  job_ = saved_.job;
  record_ = is_new ? saved_ : record_;
  unsaved_since_ = has_unsaved() ? unsaved_since_ : std::nullopt;
  next_renewal_ = now_ + options_.patience.keep_alive;
  renewed_ = asked_at_;
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
  if (!asked_ && is_call_due()) {
    consider(next_try_);
  } else if (!asked_ && phase_ == Phase::hosting) {
    consider(std::max(next_renewal_, next_try_));
  }
  return next;
}

std::optional<LeaderElection::Time> LeaderElection::unsaved_limit() const {
  return phase_ == Phase::hosting && !has_left_ && unsaved_since_
             ? std::optional(*unsaved_since_ + options_.patience.join)
             : std::nullopt;
}

bool LeaderElection::is_waiting() const {
  return has_ended_ || phase_ == Phase::seeking ||
         (phase_ == Phase::following && !was_heard_);
}

std::string LeaderElection::late_text() const {
  const std::string seconds = patience_text(options_.patience.join);
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
  if (phase_ == Phase::hosting) {
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
