#include <utility>

#include "launcher/etcd/succession.h"

// What follows from etcd's answers.
namespace launcher {
namespace {

using EtcdSeconds = std::chrono::seconds;

// The record outlives its coordinator by so long, for another host to come.
constexpr EtcdSeconds kRecordTime{60};

}  // namespace

Succession::Actions Succession::on_no_answer(EtcdCall::Kind kind,
                                             const EtcdAnswer& answer) {
  const bool is_first = !was_reached_ && phase_ == Phase::seeking;
  if (answer.outcome == Outcome::hopeless && is_first) {
    return end(RendezvousLost{options_.etcd + ": " + trouble_});
  }
  if (phase_ != Phase::hosting) {
    return {};
  }
  if (!news_.due()) {
    news_.start(now_, options_.patience.first_news);
  }
  // It may be our lease that is not there any more.
  return answer.outcome == Outcome::hopeless && kind == EtcdCall::Kind::save
             ? ask_for(EtcdCall::Kind::read)
             : Actions{};
}

Succession::Actions Succession::on_answer_while_seeking(
    EtcdCall::Kind kind, const EtcdAnswer& answer) {
  if (kind == EtcdCall::Kind::campaign && answer.outcome == Outcome::done) {
    take_office(answer);
    return {Host{saved_, earlier_host_}};
  }
  if (kind == EtcdCall::Kind::read || kind == EtcdCall::Kind::campaign) {
    return consider(answer);
  }
  return {};
}

Succession::Actions Succession::on_answer_while_following(
    EtcdCall::Kind kind, const EtcdAnswer& answer) {
  if (was_heard_) {
    return {};
  }
  if (kind == EtcdCall::Kind::wait) {
    return ask_for(EtcdCall::Kind::read);
  }
  const bool is_the_same =
      answer.coordinator && answer.coordinator->revision == followed_;
  return is_the_same ? ask_for(EtcdCall::Kind::wait) : consider(answer);
}

Succession::Actions Succession::on_answer_while_hosting(
    EtcdCall::Kind kind, const EtcdAnswer& answer) {
  if (answer.outcome == Outcome::done && news_.due()) {
    news_.stop();
  }
  switch (kind) {
    case EtcdCall::Kind::read:
      return check_own(answer);
    case EtcdCall::Kind::campaign:
      if (answer.outcome == Outcome::done) {
        take_office(answer);
        return {Saved{}};
      }
      return check_own(answer);
    case EtcdCall::Kind::save:
      if (answer.outcome == Outcome::done) {
        saved_ = sent_;
        unsaved_since_.reset();
        return {Saved{}};
      }
      return ask_for(EtcdCall::Kind::read);
    case EtcdCall::Kind::renew:
      if (answer.outcome == Outcome::done) {
        next_renewal_ = now_ + renewal();
        renewed_ = asked_at_;
        is_fenced_ = false;
        return {};
      }
      return ask_for(EtcdCall::Kind::read);
    case EtcdCall::Kind::wait:
      break;
  }
  return {};
}

/// What etcd has, of a host that does not coordinate.
Succession::Actions Succession::consider(const EtcdAnswer& answer) {
  const auto place = answer.coordinator
                         ? decode_place(answer.coordinator->value)
                         : std::nullopt;
  const auto record =
      answer.record ? decode_record(answer.record->value) : std::nullopt;
  if ((answer.coordinator && !place) || (answer.record && !record)) {
    return end(RendezvousLost{
        options_.etcd +
        ": what is there under this job's --rdzv-id is not ddprun's, or of "
        "another version; give another id, or start the same ddprun on all "
        "hosts"});
  }
  if (record && record->job == options_.id) {
    job_ = options_.id;  // we began it, though the answer was lost
  }
  const bool is_ours = record && record->job == job_;
  if (is_ours && record->closed) {
    return end(*record->closed);
  }
  if (!job_.empty() && record && !is_ours) {
    return end(RendezvousLost{
        "this job has ended, and another one with its --rdzv-id has begun at " +
        options_.etcd});
  }
  const bool is_anybody = place && place->id != options_.id &&
                          answer.coordinator->revision != gone_;
  if (is_anybody) {
    phase_ = Phase::following;
    was_heard_ = false;
    job_ = record ? record->job : job_;
    followed_ = answer.coordinator->revision;
    followed_host_ = place->host;
    return both({Follow{*place}}, ask_for(EtcdCall::Kind::wait));
  }
  phase_ = Phase::seeking;
  // One that has ended was another run's.
  JobRecord next;
  next.job = job_.empty() ? options_.id : job_;
  if (record && !record->closed) {
    next = *record;
  }
  earlier_host_ = next.host;
  return campaign(answer.coordinator ? answer.coordinator->revision : 0,
                  answer.record ? answer.record->revision : 0,
                  next);
}

/// What etcd has, of the host that coordinates, or did.
Succession::Actions Succession::check_own(const EtcdAnswer& answer) {
  const auto place = answer.coordinator
                         ? decode_place(answer.coordinator->value)
                         : std::nullopt;
  const auto record =
      answer.record ? decode_record(answer.record->value) : std::nullopt;
  const bool is_office_free =
      !answer.coordinator || (place && place->id == options_.id);
  const bool is_as_left =
      !answer.record || (record && record->writer == options_.id);
  if (is_office_free && is_as_left) {
    return campaign(answer.coordinator ? answer.coordinator->revision : 0,
                    answer.record ? answer.record->revision : 0,
                    record_);
  }
  phase_ = Phase::seeking;
  give_up_ = now_ + options_.patience.join;
  unsaved_since_.reset();
  return both({Resign{}}, consider(answer));
}

Succession::Actions Succession::campaign(int64_t coordinator_revision,
                                         int64_t record_revision,
                                         const JobRecord& record) {
  const EtcdSeconds lease = std::chrono::ceil<EtcdSeconds>(options_.lease);
  sent_ = record;
  sent_.writer = options_.id;
  sent_.host = options_.host;
  return ask({.kind = EtcdCall::Kind::campaign,
              .record = encode(sent_),
              .coordinator_revision = coordinator_revision,
              .record_revision = record_revision,
              .coordinator_time = lease,
              .record_time = kRecordTime + lease});
}

void Succession::take_office(const EtcdAnswer& answer) {
  const bool is_new = phase_ != Phase::hosting;
  phase_ = Phase::hosting;
  office_ = answer.revision;
  leases_ = answer.leases;
  saved_ = sent_;
  job_ = saved_.job;
  record_ = is_new ? saved_ : record_;
  unsaved_since_ = record_ == saved_ ? std::nullopt : unsaved_since_;
  next_renewal_ = now_ + renewal();
  renewed_ = asked_at_;
  is_fenced_ = false;
  news_.stop();
}

}  // namespace launcher
