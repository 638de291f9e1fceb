#include "launcher/doctor/hosts/hosts_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/coordinator/admission.h"
#include "launcher/doctor/hosts/doctors_election.h"
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

/// Before it is known at which host.
std::string place_of(const Meeting& meeting) {
  return meeting.etcd ? etcd_name(*meeting.etcd) : text_of(meeting.endpoint);
}

class HostsMeeting {
 public:
  HostsMeeting(const Meeting& meeting,
               const std::string& host,
               const std::string& address,
               std::function<void(const std::string&)> tell)
      : meeting_(meeting),
        wait_(std::min(meeting.patience.join, kMostWait)),
        tell_(std::move(tell)),
        hello_{hello_of(meeting, host, {}), address},
        server_(
            loop_,
            hello_.hello.id,
            2 * static_cast<size_t>(meeting.terms.most_hosts) + kSpareProbes),
        place_(place_of(meeting)) {
    hello_.port = server_.port();
  }

  HostsFacts run(const std::vector<SocketAddress>& endpoint) {
    if (meeting_.etcd) {
      elect();
    } else {
      begin(endpoint);
    }
    tell_news(meeting_.patience.first_news);
    while (!is_over()) {
      loop_.run_once();
      const bool has_met =
          host_ ? !host_->is_waiting() : guest_ && guest_->is_connected();
      if (election_ && has_met) {
        election_->close();
      }
    }
    HostsFacts facts = host_    ? host_->facts()
                       : guest_ ? guest_->facts()
                                : HostsFacts();
    facts.error = error_.empty() ? facts.error : error_;
    facts.place = place_;
    return facts;
  }

 private:
  void begin(const std::vector<SocketAddress>& endpoint) {
    std::vector<Fd> listeners = listen_at_meeting(meeting_, endpoint);
    if (listeners.empty()) {
      visit(meeting_.endpoint, endpoint);
    } else {
      receive(meeting_.endpoint, std::move(listeners));
    }
  }

  void elect() {
    election_.emplace(
        loop_,
        meeting_,
        hello_.hello,
        wait_,
        DoctorsElection::Handlers{
            .on_host =
                [this](const Endpoint& place, std::vector<Fd> listeners) {
                  receive(place, std::move(listeners));
                },
            .on_guest =
                [this](const Endpoint& place,
                       const std::vector<SocketAddress>& addresses) {
                  visit(place, addresses);
                },
            .on_lost = [this](const std::string& error) { error_ = error; },
            .on_note =
                [this](const std::string& text) {
                  if (!host_ && !guest_) {
                    tell_(text);
                  }
                }});
  }

  /// The others, here.
  void receive(const Endpoint& place, std::vector<Fd> listeners) {
    place_ = text_of(place);
    guest_.reset();
    host_.emplace(loop_, meeting_, wait_, std::move(listeners), hello_);
  }

  void visit(const Endpoint& place,
             const std::vector<SocketAddress>& addresses) {
    place_ = text_of(place);
    host_.reset();
    guest_.emplace(loop_,
                   DoctorsGuest::Options{.addresses = addresses,
                                         .place = place_,
                                         .hello = hello_,
                                         .wait = wait_});
  }

  bool is_over() const {
    const bool is_left = !election_ || election_->is_over();
    return !error_.empty() ||
           (host_ ? host_->is_over() && is_left : guest_ && guest_->is_over());
  }

  void tell_news(milliseconds delay) {
    loop_.arm_timer(kNewsTimer, delay, [this] {
      if (host_ ? !host_->is_waiting() : guest_ && !guest_->is_waiting()) {
        return;
      }
      if (host_ || (guest_ && guest_->is_connected())) {
        tell_("waiting for the other hosts: each of the " +
              std::to_string(meeting_.terms.most_hosts) +
              " starts `ddprun --doctor`");
      } else if (guest_) {
        tell_("waiting for " + place_ + ", where the hosts meet, to answer");
      }
      tell_news(kBetweenNews);
    });
  }

  Meeting meeting_;
  milliseconds wait_;
  std::function<void(const std::string&)> tell_;
  EventLoop loop_;
  WayHello hello_;
  WayServer server_;
  std::optional<DoctorsElection> election_;  // by etcd
  std::string place_;                        // for people
  std::string error_;
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
    facts = HostsMeeting(meeting, host, address, tell).run(endpoint);
  } catch (const LaunchError& error) {
    facts.error = error.what();
    facts.place = place_of(meeting);
  }
  facts.least_hosts = meeting.terms.least_hosts;
  facts.most_hosts = meeting.terms.most_hosts;
  facts.ranks_are_fixed = meeting.terms.ranks_are_fixed;
  return facts;
}

}  // namespace launcher
