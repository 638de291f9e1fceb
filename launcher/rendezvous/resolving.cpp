#include <optional>
#include <utility>

#include "launcher/error.h"
#include "launcher/names/name_lookup.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {
namespace {

class ResolvingRendezvous : public Rendezvous {
 public:
  ResolvingRendezvous(EventLoop& loop,
                      NameQuestion question,
                      std::unique_ptr<Rendezvous> next,
                      Handler handler)
      : loop_(loop),
        question_(std::move(question)),
        next_(std::move(next)),
        handler_(std::move(handler)) {}

  void join(const HostOffer& offer) override {
    if (is_resolved_) {
      next_->join(offer);
      return;
    }
    try {
      lookup_.emplace(loop_,
                      question_,
                      handler_,
                      [this, offer](const std::vector<std::string>&) {
                        lookup_.reset();
                        is_resolved_ = true;
                        next_->join(offer);
                      });
    } catch (const LaunchError& error) {
      handler_(RendezvousLost{error.what()});
    }
  }
  void report(const HostOutcome& outcome) override { next_->report(outcome); }
  void leave() override {
    lookup_.reset();
    next_->leave();
  }

 private:
  EventLoop& loop_;
  NameQuestion question_;
  std::unique_ptr<Rendezvous> next_;
  Handler handler_;
  std::optional<NameLookup> lookup_;
  bool is_resolved_ = false;
};

}  // namespace

std::unique_ptr<Rendezvous> make_resolving_rendezvous(
    EventLoop& loop,
    const NameQuestion& question,
    std::unique_ptr<Rendezvous> next,
    Rendezvous::Handler handler) {
  return std::make_unique<ResolvingRendezvous>(
      loop, question, std::move(next), std::move(handler));
}

}  // namespace launcher
