#include "launcher/hosts/coordinator/gathering.h"

#include <algorithm>

#include "ddp/base/text/rank_text.h"
#include "launcher/base/text.h"
#include "launcher/hosts/coordinator/admission.h"

namespace launcher {
namespace {

bool has_gone(const WorldBroken& lost) {
  return lost.change == WorldBroken::Change::left ||
         lost.change == WorldBroken::Change::vanished;
}

std::string loss_text(const WorldBroken& lost) {
  return "host " + lost.host +
         (lost.change == WorldBroken::Change::left ? " has left"
                                                   : " has vanished") +
         (lost.how.empty() ? "" : " (" + lost.how + ")");
}

std::string hopeless_text(const WorldBroken& lost, const JobTerms& terms) {
  return loss_text(lost) + " and the job cannot do without it (--nnodes " +
         host_range(terms) + "); see that host's own messages";
}

std::string too_few_text(const HostTable& hosts,
                         int count,
                         const WorldBroken* lost,
                         const JobTerms& terms,
                         const RendezvousTimeouts& timeouts) {
  return "expected at least " + count_text(terms.least_hosts, "host") +
         ", but got " + std::to_string(count) +
         (count > 0 ? " (" + names_of_joined(hosts) + ")" : "") + " in " +
         patience_text(timeouts.join) +
         (lost != nullptr && has_gone(*lost) ? "; " + loss_text(*lost) : "") +
         "; start ddprun on the others, or give --rdzv-conf "
         "join_timeout=SECONDS";
}

std::string missing_ranks_text(const HostTable& hosts, const JobTerms& terms) {
  if (!terms.ranks_are_fixed) {
    return "";
  }
  std::vector<bool> is_there(static_cast<size_t>(terms.most_hosts));
  for (const auto& [connection, host] : hosts) {
    // Admission has checked that it wants one of these ranks.
    is_there[static_cast<size_t>(host.hello.wanted_rank.value_or(0))] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < terms.most_hosts; ++rank) {
    if (!is_there[static_cast<size_t>(rank)]) {
      ranks.push_back(rank);
    }
  }
  return ranks.empty()
             ? ""
             : "; no host yet for node " + ddp::detail::rank_list(ranks);
}

}  // namespace

Gathering::Gathering(const JobTerms& terms,
                     const RendezvousTimeouts& timeouts,
                     int awaited_hosts,
                     Time begin)
    : terms_(terms),
      timeouts_(timeouts),
      awaited_hosts_(awaited_hosts),
      since_(begin) {}

Gathering::Verdict Gathering::judge(const HostTable& hosts,
                                    const WorldBroken* lost,
                                    Time now) {
  if (is_hopeless(hosts, lost)) {
    return GiveUp{hopeless_text(*lost, terms_)};
  }
  const int joined = count_joined(hosts);
  const bool is_late = now - since_ >= timeouts_.join;
  if (joined < terms_.least_hosts) {
    enough_since_.reset();
    return is_late ? Verdict(GiveUp{
                         too_few_text(hosts, joined, lost, terms_, timeouts_)})
                   : Wait{};
  }
  enough_since_ = enough_since_.value_or(now);
  const bool are_all_here = joined == static_cast<int>(hosts.size());
  const bool is_called =
      joined >= awaited_hosts_ || now - *enough_since_ >= timeouts_.last_call;
  return is_late || (are_all_here && is_called) ? Verdict(Form{}) : Wait{};
}

std::string Gathering::describe(const HostTable& hosts, Time now) const {
  const int joined = count_joined(hosts);
  const int known = static_cast<int>(hosts.size());
  std::string text = std::to_string(joined) + " of " +
                     count_text(std::max(awaited_hosts_, known), "host") +
                     (joined == 1 ? " is" : " are") + " here";
  if (joined > 0) {
    text += " (" + names_of_joined(hosts) + ")";
  }
  if (joined < known) {
    text += "; the workers of " +
            names_of(hosts,
                     [](const KnownHost& host) { return !host.has_joined(); }) +
            " are still to end";
  }
  const std::string left = patience_text(
      std::chrono::ceil<std::chrono::seconds>(next_deadline(now) - now));
  return text + missing_ranks_text(hosts, terms_) +
         (joined < terms_.least_hosts
              ? "; gives up in " + left + " (--rdzv-conf join_timeout)"
              : "; starts without others in " + left +
                    " (--rdzv-conf last_call_timeout)");
}

Gathering::Time Gathering::next_deadline(Time now) const {
  const Time last = since_ + timeouts_.join;
  const Time called =
      enough_since_ ? *enough_since_ + timeouts_.last_call : last;
  return called > now ? std::min(called, last) : last;
}

bool Gathering::is_hopeless(const HostTable& hosts,
                            const WorldBroken* lost) const {
  // If restarts are allowed, a lost host may be started again.
  return lost != nullptr && terms_.least_hosts == terms_.most_hosts &&
         terms_.max_restarts == 0 &&
         static_cast<int>(hosts.size()) < terms_.least_hosts;
}

}  // namespace launcher
