#include "launcher/health/health_check.h"

#include <system_error>
#include <utility>

#include "launcher/one_line.h"
#include "launcher/output/last_lines.h"
#include "launcher/output/line_splitter.h"
#include "launcher/patience_text.h"
#include "launcher/process/background_call.h"

namespace launcher {
namespace {

std::vector<std::string> last_lines_of(const std::string& output) {
  LineSplitter splitter(LineSplitter::Returns::in_text);
  LastLines lines;
  const auto take = [&lines](std::string_view line, LineEnd) {
    lines.add(line);
  };
  splitter.feed(output, take);
  splitter.finish(take);
  return lines.get();
}

class CheckedRendezvous : public Rendezvous {
 public:
  CheckedRendezvous(EventLoop& loop,
                    HealthCheck check,
                    const Environment& environment,
                    const OwnSettings& settings,
                    std::string host,
                    std::unique_ptr<Rendezvous> next,
                    Handler handler)
      : loop_(loop),
        check_(std::move(check)),
        environment_(environment),
        settings_(settings),
        host_(std::move(host)),
        next_(std::move(next)),
        handler_(std::move(handler)) {}

  void join(const HostOffer& offer) override {
    try {
      call_.emplace(
          loop_,
          [this] {
            return encode(run_command(
                check_.command, environment_, settings_, check_.limit));
          },
          [this, offer](const std::optional<std::string>& text) {
            take(text ? decode_command_end(*text) : std::nullopt, offer);
          });
    } catch (const std::system_error&) {
      take({}, offer);
    }
  }
  void report(const HostOutcome& outcome) override { next_->report(outcome); }
  void leave() override {
    call_.reset();
    next_->leave();
  }

 private:
  void take(const std::optional<CommandEnd>& end, const HostOffer& offer) {
    const HealthVerdict verdict = judge_health(check_, end, host_);
    if (!verdict.failure) {
      next_->join(offer);
      return;
    }
    for (const std::string& note : verdict.notes) {
      handler_(RendezvousNote{note});
    }
    next_->leave();
    handler_(RendezvousLost{*verdict.failure});
  }

  EventLoop& loop_;
  HealthCheck check_;
  const Environment& environment_;
  const OwnSettings& settings_;
  std::string host_;
  std::unique_ptr<Rendezvous> next_;
  Handler handler_;
  std::optional<BackgroundCall> call_;
};

}  // namespace

HealthVerdict judge_health(const HealthCheck& check,
                           const std::optional<CommandEnd>& end,
                           const std::string& host) {
  if (end && end->status && end->status->is_success()) {
    return {};
  }
  HealthVerdict verdict;
  for (const std::string& line :
       end ? last_lines_of(end->output) : std::vector<std::string>()) {
    verdict.notes.push_back("--health-check: " + on_one_line(line));
  }
  const std::string why = !end ? "could not be run; check ulimit -a"
                          : end->status
                              ? "failed (" + end->status->text() + ")"
                              : "did not end in " + patience_text(check.limit) +
                                    " (--health-check-timeout)";
  verdict.failure =
      "host " + host + " does not take part: its --health-check " + why;
  return verdict;
}

std::unique_ptr<Rendezvous> make_checked_rendezvous(
    EventLoop& loop,
    const HealthCheck& check,
    const Environment& environment,
    const OwnSettings& settings,
    const std::string& host,
    std::unique_ptr<Rendezvous> next,
    Rendezvous::Handler handler) {
  return std::make_unique<CheckedRendezvous>(loop,
                                             check,
                                             environment,
                                             settings,
                                             host,
                                             std::move(next),
                                             std::move(handler));
}

}  // namespace launcher
