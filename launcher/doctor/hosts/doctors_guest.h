#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/doctor/hosts/hosts_facts.h"
#include "launcher/doctor/hosts/way_messages.h"
#include "launcher/doctor/hosts/way_probe.h"
#include "launcher/loop/event_loop.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"

namespace launcher {

/// A doctor that goes to where the others meet, and does what it is told there.
class DoctorsGuest {
 public:
  struct Options {
    std::vector<SocketAddress> addresses;  ///< of the place, one at least
    std::string place;                     ///< "host:port", for people
    WayHello hello;                        ///< of this host
    std::chrono::milliseconds wait{120'000};
  };

  DoctorsGuest(EventLoop& loop, Options options);
  ~DoctorsGuest();
  DoctorsGuest(const DoctorsGuest&) = delete;
  DoctorsGuest& operator=(const DoctorsGuest&) = delete;

  bool is_connected() const { return is_connected_; }
  bool is_waiting() const { return !has_answer_; }
  bool is_over() const { return is_over_; }
  /// Of the ways, those from this host.
  HostsFacts facts() const;

 private:
  void connect();
  void greet();
  void on_unreached(int error);
  void on_closed(int error);
  void read(const std::vector<std::string>& lines);
  void take(const WayMessage& message);
  void keep(const WayResults& results);
  void set_end(std::chrono::milliseconds limit);
  void end(const std::string& error);

  EventLoop& loop_;
  Options options_;
  std::chrono::steady_clock::time_point try_until_;
  size_t next_address_ = 0;
  bool is_connected_ = false;
  bool has_answer_ = false;
  bool is_over_ = false;
  HostsFacts facts_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<WayProbes> probes_;
  std::unique_ptr<WayProbes> former_probes_;  // may be at work just now
};

}  // namespace launcher
