#include "launcher/doctor/hosts/doctors_election.h"

#include <system_error>
#include <utility>
#include <variant>

#include "launcher/error.h"
#include "launcher/names/host_name.h"
#include "launcher/names/name_answer.h"
#include "launcher/overloaded.h"
#include "launcher/rendezvous/doors.h"
#include "launcher/rendezvous/meeting_place.h"

namespace launcher {
namespace {

constexpr const char* kElectionTimer = "doctors: etcd";

Succession::Time election_time() {
  return std::chrono::steady_clock::now();
}

Patience patient_for(std::chrono::milliseconds wait, Patience patience) {
  patience.join = wait;
  return patience;
}

}  // namespace

DoctorsElection::DoctorsElection(EventLoop& loop,
                                 const Meeting& meeting,
                                 const Hello& hello,
                                 std::chrono::milliseconds wait,
                                 Handlers handlers)
    : loop_(loop),
      address_(meeting.local_address),
      handlers_(std::move(handlers)),
      succession_({.id = hello.id,
                   .host = hello.host,
                   .etcd = etcd_name(meeting.etcd.value()),
                   .patience = patient_for(wait, meeting.patience)}),
      calls_(loop,
             meeting.etcd.value(),
             meeting.terms.run_id + "/doctors",
             [this](const EtcdAnswer& answer) {
               perform(succession_.on_answer(answer, election_time()));
             }),
      place_{.id = hello.id, .host = hello.host} {
  perform(succession_.begin(election_time()));
}

DoctorsElection::~DoctorsElection() {
  loop_.disarm_timer(kElectionTimer);
}

void DoctorsElection::close() {
  if (!std::exchange(is_closed_, true)) {
    perform(succession_.leave(election_time()));
  }
}

void DoctorsElection::perform(const Succession::Actions& actions) {
  for (const Succession::Action& action : actions) {
    std::visit(Overloaded{[](const Succession::Saved&) {},
                          [this](const auto& known) { act(known); }},
               action);
  }
  loop_.arm_timer_at(kElectionTimer, succession_.next_deadline(), [this] {
    perform(succession_.on_time(election_time()));
  });
}

void DoctorsElection::act(EtcdCall call) {
  if (call.kind == EtcdCall::Kind::campaign) {
    open();
    call.coordinator = encode(place_);
  }
  try {
    calls_.start(call);
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      std::string(error.what()) + "; check ulimit -a");
  }
}

void DoctorsElection::open() {
  if (place_.endpoint.port == 0) {
    Doors doors = open_doors(calls_.own_address(address_));
    place_.endpoint = doors.endpoint;
    listeners_ = std::move(doors.listeners);
  }
}

void DoctorsElection::act(const Succession::Follow& follow) {
  listeners_.clear();
  place_.endpoint = {};
  const Endpoint& there = follow.place.endpoint;
  const auto addresses =
      with_port(decode_answer(calls_.last().addresses).addresses, there.port);
  if (!addresses.empty()) {
    handlers_.on_guest(there, addresses);
  }
}

void DoctorsElection::act(const Succession::Host&) {
  handlers_.on_host(place_.endpoint, std::exchange(listeners_, {}));
}

void DoctorsElection::act(const RendezvousAnswer& answer) {
  std::visit(
      Overloaded{
          [this](const RendezvousNote& note) { handlers_.on_note(note.text); },
          [this](const RendezvousLost& lost) { handlers_.on_lost(lost.text); },
          [this](const auto&) {
            handlers_.on_lost(
                "what etcd has of this job's doctors is not "
                "theirs; give another --rdzv-id");
          }},
      answer);
}

}  // namespace launcher
