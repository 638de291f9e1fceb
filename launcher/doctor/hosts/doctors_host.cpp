#include "launcher/doctor/hosts/doctors_host.h"

#include <string>
#include <utility>

#include "launcher/overloaded.h"

namespace launcher {
namespace {

constexpr size_t kSpareDoctors = 64;
constexpr std::chrono::seconds kPartingTime{2};
constexpr const char* kHubTimer = "doctors: host";

}  // namespace

DoctorsHost::DoctorsHost(EventLoop& loop,
                         const Meeting& meeting,
                         std::chrono::milliseconds wait,
                         std::vector<Fd> listeners,
                         const WayHello& hello)
    : loop_(loop),
      hub_({.admission = {.terms = meeting.terms,
                          .token = meeting.token,
                          .keep_alive = meeting.patience.keep_alive},
            .wait = wait,
            .last_call = meeting.patience.last_call},
           std::chrono::steady_clock::now()),
      guests_(
          loop,
          std::move(listeners),
          2 * static_cast<size_t>(meeting.terms.most_hosts) + kSpareDoctors,
          kLongestWayMessage,
          {.on_line =
               [this](Guests::Id id, const std::string& line) {
                 const auto message = decode_way(line);
                 if (message) {
                   tell(id, *message);
                 }
                 return message.has_value();
               },
           .on_closed =
               [this](Guests::Id id) {
                 perform(hub_.on_closed(id, std::chrono::steady_clock::now()));
               }}) {
  tell(WayHub::kOwn, hello);
}

DoctorsHost::~DoctorsHost() {
  loop_.disarm_timer(kHubTimer);
}

bool DoctorsHost::is_over() const {
  return leaves_ &&
         (guests_.count() == 0 || std::chrono::steady_clock::now() >= *leaves_);
}

void DoctorsHost::tell(WayHub::Connection from, const WayMessage& message) {
  const std::string here =
      from == WayHub::kOwn ? "" : guests_.address_here(from);
  perform(
      hub_.on_message(from, here, message, std::chrono::steady_clock::now()));
}

void DoctorsHost::perform(const WayHub::Actions& actions) {
  for (const WayHub::Action& action : actions) {
    std::visit(Overloaded{[this](const WayHub::Send& send) { take(send); },
                          [this](const WayHub::Drop& drop) {
                            guests_.part_with(drop.connection);
                          }},
               action);
  }
  if (hub_.is_done() && !leaves_) {
    leaves_ = std::chrono::steady_clock::now() + kPartingTime;
  }
  set_timer();
}

void DoctorsHost::take(const WayHub::Send& send) {
  if (send.to != WayHub::kOwn) {
    guests_.send(send.to, encode_way(send.message));
  } else if (const auto* order = std::get_if<WayOrder>(&send.message)) {
    former_probes_ = std::move(probes_);
    probes_ = std::make_unique<WayProbes>(
        loop_, *order, [this](const WayResults& results) {
          tell(WayHub::kOwn, results);
        });
  }
}

void DoctorsHost::set_timer() {
  loop_.arm_timer_at(kHubTimer, leaves_.value_or(hub_.next_deadline()), [this] {
    if (!leaves_) {
      perform(hub_.on_time(std::chrono::steady_clock::now()));
    }
  });
}

}  // namespace launcher
