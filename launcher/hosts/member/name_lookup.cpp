#include "launcher/hosts/member/name_lookup.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr const char* kDeadlineTimer = "end of the name lookup";
constexpr const char* kNewsTimer = "news of the name lookup";
constexpr const char* kQueryTimer = "next query of the name lookup";
constexpr std::chrono::milliseconds kFirstPause{250};

WaitingNews::Time lookup_time() {
  return std::chrono::steady_clock::now();
}

std::string advice(const NameQuestion& question) {
  return "check " + question.option;
}

std::string silent_text(const NameQuestion& question) {
  return "the name service has not said in time which address host " +
         question.host + " has; " + advice(question) +
         " and the name service, or give an IP address";
}

std::string unknown_text(const NameQuestion& question,
                         const NameAnswer& answer,
                         bool has_waited) {
  return problem_text(question.host, answer) +
         (has_waited
              ? ", and got no address in time (--rdzv-conf join_timeout); " +
                    advice(question) + " and whether that host was started"
              : "; " + advice(question)) +
         ", or give an IP address";
}

std::string waiting_text(const NameQuestion& question,
                         const std::optional<NameAnswer>& last) {
  const std::string host = question.host + " (" + question.option + ")";
  return last ? "waiting for host " + host + " to get an address: " +
                    problem_text(question.host, *last) + " yet"
              : "waiting for the name service, which has not said yet which "
                "address host " +
                    host + " has";
}

}  // namespace

NameLookup::NameLookup(EventLoop& loop,
                       NameQuestion question,
                       Rendezvous::Handler handler,
                       Found on_found)
    : loop_(loop),
      question_(std::move(question)),
      handler_(std::move(handler)),
      on_found_(std::move(on_found)),
      deadline_(lookup_time() + question_.timeouts.join),
      backoff_(std::min(kFirstPause, question_.timeouts.between_lookups),
               question_.timeouts.between_lookups) {
  try {
    start_query();
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      std::string(error.what()) + "; check ulimit -a");
  }
  loop_.arm_timer_at(kDeadlineTimer, deadline_, [this] {
    fail(last_ ? unknown_text(question_, *last_, true)
               : silent_text(question_));
  });
  news_.start(lookup_time(), question_.timeouts.first_news);
  arm_news();
}

NameLookup::~NameLookup() {
  loop_.disarm_timer(kDeadlineTimer);
  loop_.disarm_timer(kNewsTimer);
  loop_.disarm_timer(kQueryTimer);
}

void NameLookup::start_query() {
  call_.emplace(
      loop_,
      [ask = question_.ask, host = question_.host] {
        return encode(ask(host));
      },
      [this](const std::optional<std::string>& text) {
        on_answer(decode_answer(text.value_or("")));
      });
}

void NameLookup::query_again() {
  try {
    start_query();
  } catch (const std::system_error& error) {
    fail(std::string(error.what()) + "; check ulimit -a");
  }
}

void NameLookup::on_answer(const NameAnswer& answer) {
  switch (judge(question_.host, answer, question_.is_awaited)) {
    case NameVerdict::found: {
      const Found on_found =
          std::move(on_found_);  // it may destroy this object
      on_found(answer.addresses);
      return;
    }
    case NameVerdict::never:
      fail(unknown_text(question_, answer, false));
      return;
    case NameVerdict::not_yet:
      last_ = answer;
      loop_.arm_timer(kQueryTimer, backoff_.next(), [this] { query_again(); });
      return;
  }
}

void NameLookup::arm_news() {
  if (news_.due() && *news_.due() < deadline_) {
    loop_.arm_timer_at(kNewsTimer, news_.due(), [this] { print_news(); });
  }
}

void NameLookup::print_news() {
  news_.mark_printed(lookup_time());
  arm_news();
  handler_(RendezvousNote{waiting_text(question_, last_) + "; gives up" +
                          in_seconds(deadline_ - lookup_time()) +
                          " (--rdzv-conf join_timeout)"});
}

void NameLookup::fail(const std::string& text) {
  call_.reset();
  loop_.disarm_timer(kDeadlineTimer);
  loop_.disarm_timer(kNewsTimer);
  loop_.disarm_timer(kQueryTimer);
  const Rendezvous::Handler handler = handler_;  // it may destroy this object
  handler(RendezvousLost{text});
}

}  // namespace launcher
