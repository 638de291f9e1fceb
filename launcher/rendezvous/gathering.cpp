#include "launcher/rendezvous/gathering.h"

#include <algorithm>

#include "launcher/rendezvous/admission.h"

namespace launcher {
namespace {

bool has_gone(const WorldBroken& lost) {
  return lost.change == WorldBroken::Change::left ||
         lost.change == WorldBroken::Change::vanished;
}

std::string loss_text(const WorldBroken& lost) {
  return "host " + lost.host +
         (lost.change == WorldBroken::Change::left ? " has left"
                                                   : " has vanished");
}

std::string hopeless_text(const WorldBroken& lost, const JobTerms& terms) {
  return loss_text(lost) + " and the job cannot do without it (--nnodes " +
         host_range(terms) + "); see that host's own messages";
}

std::string too_few_text(const Roster& hosts,
                         const WorldBroken* lost,
                         const JobTerms& terms,
                         const Patience& patience) {
  const int count = joined(hosts);
  return "expected at least " + std::to_string(terms.least_hosts) +
         " hosts, but got " + std::to_string(count) +
         (count > 0 ? " (" + names_of_joined(hosts) + ")" : "") + " in " +
         std::to_string(patience.join.count() / 1000) + " s" +
         (lost != nullptr && has_gone(*lost) ? "; " + loss_text(*lost) : "") +
         "; start ddprun on the others, or give --rdzv-conf "
         "join_timeout=SECONDS";
}

}  // namespace

Gathering::Gathering(const JobTerms& terms,
                     const Patience& patience,
                     int awaited_hosts,
                     Time now)
    : terms_(terms),
      patience_(patience),
      awaited_hosts_(awaited_hosts),
      since_(now) {}

Gathering::Verdict Gathering::judge(const Roster& hosts,
                                    const WorldBroken* lost,
                                    Time now) {
  if (is_hopeless(hosts, lost)) {
    return GiveUp{hopeless_text(*lost, terms_)};
  }
  const int count = joined(hosts);
  const bool is_late = now - since_ >= patience_.join;
  if (count < terms_.least_hosts) {
    enough_since_.reset();
    return is_late
               ? Verdict(GiveUp{too_few_text(hosts, lost, terms_, patience_)})
               : Wait{};
  }
  enough_since_ = enough_since_.value_or(now);
  const bool are_all_here = count == static_cast<int>(hosts.size());
  const bool is_called =
      count >= awaited_hosts_ || now - *enough_since_ >= patience_.last_call;
  return is_late || (are_all_here && is_called) ? Verdict(Form{}) : Wait{};
}

void Gathering::delay(Time::duration time) {
  since_ += time;
  if (enough_since_) {
    *enough_since_ += time;
  }
}

Gathering::Time Gathering::next_deadline(Time now) const {
  const Time last = since_ + patience_.join;
  const Time called =
      enough_since_ ? *enough_since_ + patience_.last_call : last;
  return called > now ? std::min(called, last) : last;
}

bool Gathering::is_hopeless(const Roster& hosts,
                            const WorldBroken* lost) const {
  // Where restarts are allowed, somebody may start a lost host again.
  return lost != nullptr && terms_.least_hosts == terms_.most_hosts &&
         terms_.max_restarts == 0 &&
         static_cast<int>(hosts.size()) < terms_.least_hosts;
}

}  // namespace launcher
