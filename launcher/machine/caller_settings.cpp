#include "launcher/machine/caller_settings.h"

namespace launcher {

CallerSettings::CallerSettings() {
  const auto set = [](int number, auto handler) {
    struct sigaction own {};
    own.sa_handler = handler;
    Action action{number, {}};
    ::sigaction(number, &own, &action.callers);
    return action;
  };
  actions_ = {
      set(SIGCHLD, SIG_DFL), set(SIGPIPE, SIG_IGN), set(SIGXFSZ, SIG_IGN)};
  ::getrlimit(RLIMIT_NOFILE, &callers_files_);
  const rlimit own{callers_files_.rlim_max, callers_files_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &own);
  callers_mask_ = ::umask(0077);
  ::umask(callers_mask_ & 0077);
}

void CallerSettings::restore() const {
  for (const Action& action : actions_) {
    ::sigaction(action.number, &action.callers, nullptr);
  }
  ::setrlimit(RLIMIT_NOFILE, &callers_files_);
  ::umask(callers_mask_);
}

}  // namespace launcher
