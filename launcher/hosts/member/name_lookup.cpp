#include "launcher/hosts/member/name_lookup.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr const char* kEnd = "end of the name lookup";
constexpr const char* kNews = "news of the name lookup";
constexpr const char* kAgain = "next question of the name lookup";
constexpr std::chrono::milliseconds kFirstDelay{250};

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
      end_(lookup_time() + question_.patience.join),
      delay_(std::min(kFirstDelay, question_.patience.between_lookups)) {
  try {
    ask();
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      std::string(error.what()) + "; check ulimit -a");
  }
  loop_.arm_timer(kEnd, question_.patience.join, [this] {
    end(last_ ? unknown_text(question_, *last_, true) : silent_text(question_));
  });
  news_.start(lookup_time(), question_.patience.first_news);
  arm_news();
}

NameLookup::~NameLookup() {
  loop_.disarm_timer(kEnd);
  loop_.disarm_timer(kNews);
  loop_.disarm_timer(kAgain);
}

void NameLookup::ask() {
  call_.emplace(
      loop_,
      [ask = question_.ask, host = question_.host] {
        return encode(ask(host));
      },
      [this](const std::optional<std::string>& text) {
        take(decode_answer(text.value_or("")));
      });
}

void NameLookup::ask_again() {
  try {
    ask();
  } catch (const std::system_error& error) {
    end(std::string(error.what()) + "; check ulimit -a");
  }
}

void NameLookup::take(const NameAnswer& answer) {
  switch (judge(question_.host, answer, question_.is_awaited)) {
    case NameVerdict::found: {
      const Found on_found =
          std::move(on_found_);  // it may destroy this object
      on_found(answer.addresses);
      return;
    }
    case NameVerdict::never:
      end(unknown_text(question_, answer, false));
      return;
    case NameVerdict::not_yet:
      last_ = answer;
      loop_.arm_timer(kAgain, delay_, [this] { ask_again(); });
      delay_ = std::min(2 * delay_, question_.patience.between_lookups);
      return;
  }
}

void NameLookup::arm_news() {
  if (news_.due() && *news_.due() < end_) {
    loop_.arm_timer_at(kNews, news_.due(), [this] { tell_news(); });
  }
}

void NameLookup::tell_news() {
  news_.said(lookup_time());
  arm_news();
  handler_(RendezvousNote{waiting_text(question_, last_) + "; gives up" +
                          in_seconds(end_ - lookup_time()) +
                          " (--rdzv-conf join_timeout)"});
}

void NameLookup::end(const std::string& text) {
  call_.reset();
  loop_.disarm_timer(kEnd);
  loop_.disarm_timer(kNews);
  loop_.disarm_timer(kAgain);
  const Rendezvous::Handler handler = handler_;  // it may destroy this object
  handler(RendezvousLost{text});
}

}  // namespace launcher
