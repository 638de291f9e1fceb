#include "launcher/hosts/join_steps.h"

#include <system_error>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

/// Of a health check, the end of which tells why it failed.
constexpr size_t kMostHealthOutput = 64 * 1024;

}  // namespace

JoinSteps::JoinSteps(EventLoop& loop,
                     Options options,
                     const Environment& environment,
                     const CallerSettings& settings,
                     Rendezvous::Handler handler)
    : loop_(loop),
      options_(std::move(options)),
      environment_(environment),
      settings_(settings),
      handler_(std::move(handler)) {}

void JoinSteps::run(std::function<void()> join) {
  join_ = std::move(join);
  if (options_.health_check.command.empty()) {
    look_up();
  } else {
    check_health();
  }
}

void JoinSteps::cancel() {
  check_.reset();
  lookup_.reset();
}

void JoinSteps::check_health() {
  try {
    check_.emplace(
        loop_,
        [this] {
          return encode(run_and_capture(
              {.argv = {"/bin/sh", "-c", options_.health_check.command},
               .environment = environment_,
               .settings = &settings_,
               .limit = options_.health_check.limit,
               .most_bytes = kMostHealthOutput,
               .keeps_end = true,
               .with_stderr = true}));
        },
        [this](const std::optional<std::string>& text) {
          finish_check(text ? decode_command_end(*text) : std::nullopt);
        });
  } catch (const std::system_error&) {
    finish_check({});
  }
}

void JoinSteps::finish_check(const std::optional<CommandEnd>& end) {
  const HealthVerdict verdict =
      judge_health(options_.health_check, end, options_.host);
  if (!verdict.failure) {
    look_up();
    return;
  }
  for (const std::string& note : verdict.notes) {
    handler_(RendezvousNote{note});
  }
  handler_(RendezvousLost{*verdict.failure});
}

void JoinSteps::look_up() {
  if (is_resolved_ || !options_.lookup) {
    join_();
    return;
  }
  try {
    lookup_.emplace(loop_,
                    *options_.lookup,
                    handler_,
                    [this](const std::vector<std::string>&) {
                      lookup_.reset();
                      is_resolved_ = true;
                      join_();
                    });
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

}  // namespace launcher
