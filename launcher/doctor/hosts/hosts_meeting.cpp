#include "launcher/doctor/hosts/hosts_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/coordinator/admission.h"
#include "launcher/doctor/hosts/doctors_guest.h"
#include "launcher/doctor/hosts/doctors_host.h"
#include "launcher/doctor/hosts/way_server.h"
#include "launcher/error.h"
#include "launcher/rendezvous/meeting_place.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMostWait{120'000};
constexpr milliseconds kBetweenNews{30'000};
constexpr size_t kSpareProbes = 64;
constexpr const char* kNewsTimer = "doctors: news";

class HostsMeeting {
 public:
  HostsMeeting(const Meeting& meeting,
               const std::string& host,
               const std::string& address)
      : meeting_(meeting),
        hello_{hello_of(meeting, host, {}), address},
        server_(
            loop_,
            hello_.hello.id,
            2 * static_cast<size_t>(meeting.terms.most_hosts) + kSpareProbes) {
    hello_.port = server_.port();
  }

  HostsFacts run(const std::vector<SocketAddress>& endpoint,
                 const std::function<void(const std::string&)>& tell) {
    begin(endpoint);
    tell_news(meeting_.patience.first_news, tell);
    while (host_ ? !host_->is_over() : !guest_->is_over()) {
      loop_.run_once();
    }
    return host_ ? host_->facts() : guest_->facts();
  }

 private:
  void begin(const std::vector<SocketAddress>& endpoint) {
    const milliseconds wait = std::min(meeting_.patience.join, kMostWait);
    std::vector<Fd> listeners = listen_at_meeting(meeting_, endpoint);
    if (!listeners.empty()) {
      host_.emplace(loop_, meeting_, wait, std::move(listeners), hello_);
      return;
    }
    guest_.emplace(loop_,
                   DoctorsGuest::Options{.addresses = endpoint,
                                         .place = text_of(meeting_.endpoint),
                                         .hello = hello_,
                                         .wait = wait});
  }

  void tell_news(milliseconds delay,
                 const std::function<void(const std::string&)>& tell) {
    loop_.arm_timer(kNewsTimer, delay, [this, tell] {
      const bool is_there = host_ || guest_->is_connected();
      if (host_ ? !host_->is_waiting() : !guest_->is_waiting()) {
        return;
      }
      tell(is_there ? "waiting for the other hosts: each of the " +
                          std::to_string(meeting_.terms.most_hosts) +
                          " starts `ddprun --doctor`"
                    : "waiting for " + text_of(meeting_.endpoint) +
                          ", where the hosts meet, to answer");
      tell_news(kBetweenNews, tell);
    });
  }

  Meeting meeting_;
  EventLoop loop_;
  WayHello hello_;
  WayServer server_;
  std::optional<DoctorsHost> host_;  // or
  std::optional<DoctorsGuest> guest_;
};

}  // namespace

HostsFacts meet_hosts(const Meeting& meeting,
                      const std::vector<SocketAddress>& endpoint,
                      const std::string& host,
                      const std::string& address,
                      const std::function<void(const std::string&)>& tell) {
  HostsFacts facts;
  try {
    facts = HostsMeeting(meeting, host, address).run(endpoint, tell);
  } catch (const LaunchError& error) {
    facts.error = error.what();
  }
  facts.place = text_of(meeting.endpoint);
  facts.least_hosts = meeting.terms.least_hosts;
  facts.most_hosts = meeting.terms.most_hosts;
  facts.ranks_are_fixed = meeting.terms.ranks_are_fixed;
  return facts;
}

}  // namespace launcher
