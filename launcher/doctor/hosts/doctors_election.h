#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/etcd/record.h"
#include "launcher/etcd/succession.h"
#include "launcher/loop/event_loop.h"
#include "launcher/net/address.h"
#include "launcher/rendezvous/etcd_calls.h"
#include "launcher/rendezvous/meeting.h"
#include "launcher/rendezvous/message.h"

namespace launcher {

/// At which doctor those of a job that meets by etcd meet: the calls, the clock
/// and the sockets of a Succession. Its keys lie beside the job's own, so no
/// doctor coordinates a job, nor the other way round.
class DoctorsElection {
 public:
  /// Called by the loop, each again when the place is another one.
  struct Handlers {
    /// The others come here, to these listeners.
    std::function<void(const Endpoint& place, std::vector<Fd> listeners)>
        on_host;
    /// They meet there; `addresses` has one at least.
    std::function<void(const Endpoint& place,
                       const std::vector<SocketAddress>& addresses)>
        on_guest;
    /// There will be no place: why, and what to do.
    std::function<void(const std::string& error)> on_lost;
    /// What it waits for, for people.
    std::function<void(const std::string& text)> on_note;
  };

  /// @param meeting  by etcd
  /// @param hello  of this host
  /// @param wait  for a place that answers
  DoctorsElection(EventLoop& loop,
                  const Meeting& meeting,
                  const Hello& hello,
                  std::chrono::milliseconds wait,
                  Handlers handlers);
  ~DoctorsElection();
  DoctorsElection(const DoctorsElection&) = delete;
  DoctorsElection& operator=(const DoctorsElection&) = delete;

  /// All are there who are to come, or the place has answered: there will be no
  /// other one, and etcd is left as it was.
  void close();
  /// Nothing is left to be done in etcd.
  bool is_over() const { return succession_.is_over(); }

 private:
  void perform(const Succession::Actions& actions);
  void act(EtcdCall call);
  void act(const Succession::Follow& follow);
  void act(const Succession::Host&);
  void act(const Succession::Resign&) { place_.endpoint = {}; }
  void act(const RendezvousAnswer& answer);
  void open();

  EventLoop& loop_;
  std::string address_;  // of this host, if the user named one
  Handlers handlers_;
  Succession succession_;
  EtcdCalls calls_;
  CoordinatorPlace place_;  // of this host; port 0: not open
  std::vector<Fd> listeners_;
  bool is_closed_ = false;
};

}  // namespace launcher
