#include "launcher/etcd/succession.h"

#include <algorithm>
#include <utility>

#include "launcher/one_line.h"

namespace launcher {
namespace {

constexpr std::chrono::milliseconds kBetweenCalls{500};
// What leaves waits so long for its last words to be written.
constexpr std::chrono::seconds kLastWords{5};

Succession::Action saying(const RendezvousAnswer& answer) {
  return Succession::Action(std::in_place_type<RendezvousAnswer>, answer);
}

}  // namespace

Succession::Actions Succession::both(Actions first, Actions second) {
  first.insert(first.end(),
               std::make_move_iterator(second.begin()),
               std::make_move_iterator(second.end()));
  return first;
}

Succession::Actions Succession::begin(Time now) {
  return phase_ == Phase::none ? seek(now) : Actions{};
}

Succession::Actions Succession::seek(Time now) {
  now_ = now;
  phase_ = Phase::seeking;
  was_heard_ = false;
  next_try_ = now_;
  give_up_ = now_ + options_.patience.join;
  news_.start(now_, options_.patience.first_news);
  return ask_for(EtcdCall::Kind::read);
}

Succession::Actions Succession::on_answer(const EtcdAnswer& answer, Time now) {
  now_ = now;
  const bool was_asked = asked_.has_value();
  const bool is_answered =
      answer.outcome == Outcome::done || answer.outcome == Outcome::denied;
  if (!was_asked || phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  if (is_answered) {
    was_reached_ = true;
    trouble_.clear();
  } else {
    trouble_ = on_one_line(answer.text);
    next_try_ = now_ + kBetweenCalls;
  }
  const EtcdCall call = *std::exchange(asked_, std::nullopt);
  Actions actions;
  if (phase_ == Phase::leaving) {
    const bool is_last = call.kind == EtcdCall::Kind::save && call.gives_up;
    if (is_last && is_answered) {
      phase_ = Phase::over;
    }
  } else if (!is_answered) {
    actions = on_no_answer(call.kind, answer);
  } else if (phase_ == Phase::seeking) {
    actions = on_answer_while_seeking(call.kind, answer);
  } else if (phase_ == Phase::following) {
    actions = on_answer_while_following(call.kind, answer);
  } else {
    actions = on_answer_while_hosting(call.kind, answer);
  }
  return both(std::move(actions), act());
}

void Succession::on_heard() {
  if (phase_ == Phase::following) {
    was_heard_ = true;
    gone_ = 0;
    news_.stop();
  }
}

Succession::Actions Succession::on_lost(bool is_gone, Time now) {
  now_ = now;
  if (phase_ != Phase::following) {
    return {};
  }
  gone_ = is_gone ? followed_ : gone_;
  if (was_heard_) {
    return seek(now);
  }
  phase_ = Phase::seeking;
  next_try_ = now_;
  return ask_for(EtcdCall::Kind::read);
}

Succession::Actions Succession::on_record(const JobRecord& record, Time now) {
  now_ = now;
  if (phase_ != Phase::hosting) {
    return {};
  }
  JobRecord next = record;
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

Succession::Actions Succession::leave(Time now) {
  now_ = now;
  const bool has_office = phase_ == Phase::hosting;
  const bool is_left = saved_.closed && !has_unsaved();
  if (!has_office || is_left) {
    phase_ = Phase::over;
    return {};
  }
  phase_ = Phase::leaving;
  next_try_ = now_;
  give_up_ = now_ + kLastWords;
  return act();
}

Succession::Actions Succession::on_time(Time now) {
  now_ = now;
  return act();
}

Succession::Actions Succession::act() {
  const bool is_late = is_waiting() && now_ >= give_up_;
  if (phase_ == Phase::leaving && is_late) {
    phase_ = Phase::over;
  }
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  const bool is_unsaved_long = phase_ == Phase::hosting && unsaved_since_ &&
                               now_ - *unsaved_since_ >= options_.patience.join;
  if (is_late || is_unsaved_long) {
    return end(RendezvousLost{late_text()});
  }
  Actions actions;
  if (is_under_lease() && !is_fenced_ && now_ >= fence_time()) {
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
  if (asked_ || now_ < next_try_) {
    return actions;
  }
  if (phase_ == Phase::seeking || (phase_ == Phase::following && !was_heard_)) {
    return both(std::move(actions), ask_for(EtcdCall::Kind::read));
  }
  return both(std::move(actions), act_in_office());
}

Succession::Actions Succession::act_in_office() {
  if (must_renew()) {
    return ask({.kind = EtcdCall::Kind::renew, .leases = leases_});
  }
  if (phase_ == Phase::leaving || (phase_ == Phase::hosting && has_unsaved())) {
    sent_ = record_;
    return ask({.kind = EtcdCall::Kind::save,
                .record = encode(sent_),
                .coordinator_revision = office_,
                .gives_up = phase_ == Phase::leaving || sent_.closed,
                .leases = leases_});
  }
  const bool is_renewal_due =
      phase_ == Phase::hosting && !saved_.closed && now_ >= next_renewal_;
  return is_renewal_due
             ? ask({.kind = EtcdCall::Kind::renew, .leases = leases_})
             : Actions{};
}

Succession::Actions Succession::ask_for(EtcdCall::Kind kind) {
  return ask({.kind = kind, .coordinator_revision = followed_});
}

Succession::Actions Succession::ask(const EtcdCall& call) {
  if (asked_ && asked_->kind != EtcdCall::Kind::wait) {
    return {};
  }
  asked_ = call;
  asked_at_ = now_;
  return {call};
}

Succession::Actions Succession::end(const RendezvousAnswer& answer) {
  phase_ = Phase::over;
  return {saying(answer)};
}

std::optional<Succession::Time> Succession::next_deadline() const {
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return std::nullopt;
  }
  Time next = news_.due().value_or(Time::max());
  if (is_waiting()) {
    next = std::min(next, give_up_);
  }
  if (phase_ == Phase::hosting && unsaved_since_) {
    next = std::min(next, *unsaved_since_ + options_.patience.join);
  }
  if (is_under_lease() && !is_fenced_) {
    next = std::min(next, fence_time());
  }
  if (!asked_) {
    const bool is_idle =
        phase_ == Phase::hosting && !has_unsaved() && !must_renew();
    const bool is_settled = phase_ == Phase::following && was_heard_;
    const bool is_closed = is_idle && saved_.closed.has_value();
    next = is_settled || is_closed ? next
           : is_idle ? std::min(next, std::max(next_renewal_, next_try_))
                     : std::min(next, next_try_);
  }
  return next == Time::max() ? std::nullopt : std::optional(next);
}

std::chrono::milliseconds Succession::renewal() const {
  return options_.patience.keep_alive;
}

bool Succession::has_unsaved() const {
  return !(record_ == saved_);
}

bool Succession::is_under_lease() const {
  return phase_ == Phase::hosting && !saved_.closed;
}

Succession::Time Succession::fence_time() const {
  return renewed_ + options_.lease - options_.ending;
}

bool Succession::is_waiting() const {
  return phase_ == Phase::seeking || phase_ == Phase::leaving ||
         (phase_ == Phase::following && !was_heard_);
}

}  // namespace launcher
