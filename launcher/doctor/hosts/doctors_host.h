#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "launcher/doctor/hosts/way_hub.h"
#include "launcher/doctor/hosts/way_probe.h"
#include "launcher/loop/event_loop.h"
#include "launcher/rendezvous/guests.h"
#include "launcher/rendezvous/meeting.h"

namespace launcher {

/// The doctor at whose host the others meet: the sockets and the clock of a
/// WayHub, of which it is the first guest.
class DoctorsHost {
 public:
  /// @param listeners where the others come, one at least
  /// @param hello of this host
  DoctorsHost(EventLoop& loop,
              const Meeting& meeting,
              std::chrono::milliseconds wait,
              std::vector<Fd> listeners,
              const WayHello& hello);
  ~DoctorsHost();
  DoctorsHost(const DoctorsHost&) = delete;
  DoctorsHost& operator=(const DoctorsHost&) = delete;

  bool is_waiting() const { return hub_.is_gathering(); }
  /// And the others know.
  bool is_over() const;
  HostsFacts facts() const { return hub_.facts(); }

 private:
  void tell(WayHub::Connection from, const WayMessage& message);
  void perform(const WayHub::Actions& actions);
  void take(const WayHub::Send& send);
  void set_timer();

  EventLoop& loop_;
  WayHub hub_;
  Guests guests_;
  std::optional<WayHub::Time> leaves_;  // whoever is still there
  std::unique_ptr<WayProbes> probes_;
  std::unique_ptr<WayProbes> former_probes_;  // may be at work just now
};

}  // namespace launcher
