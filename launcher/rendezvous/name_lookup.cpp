#include "launcher/rendezvous/name_lookup.h"

#include <system_error>

#include "launcher/coordinator/waiting_text.h"
#include "launcher/error.h"

namespace launcher {
namespace {

constexpr const char* kEnd = "end of the name lookup";
constexpr const char* kNews = "news of the name lookup";

std::string late_text(const NameLookup::Question& question) {
  return "the name service has not said in time which address host " +
         question.host + " has; check " + question.option +
         " and the name service, or give an IP address";
}

}  // namespace

NameLookup::NameLookup(EventLoop& loop,
                       const Question& question,
                       const Rendezvous::Handler& handler,
                       const std::function<void(const std::string&)>& on_answer)
    : loop_(loop) {
  try {
    call_.emplace(loop,
                  question.ask,
                  [on_answer](const std::optional<std::string>& answer) {
                    on_answer(answer.value_or(""));
                  });
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      std::string(error.what()) + "; check ulimit -a");
  }
  const Patience& patience = question.patience;
  loop_.arm_timer(kEnd, patience.join, [this, question, handler] {
    call_.reset();
    handler(RendezvousLost{late_text(question)});
  });
  if (patience.first_news < patience.join) {
    loop_.arm_timer(kNews, patience.first_news, [question, handler] {
      const Patience& known = question.patience;
      handler(RendezvousNote{
          "waiting for the name service, which has not said yet which address "
          "host " +
          question.host + " (" + question.option + ") has; gives up" +
          in_seconds(known.join - known.first_news)});
    });
  }
}

NameLookup::~NameLookup() {
  loop_.disarm_timer(kEnd);
  loop_.disarm_timer(kNews);
}

}  // namespace launcher
