#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// What went wrong with an address, in words of the system ("Connection
/// refused"), or "" when all is well.
using Problem = std::string;

/// A listening socket at `port` of the address that `host` resolves to when
/// that is a loopback address (nobody outside reaches it then), else of every
/// address of this machine. The caller owns `fd`.
struct Listener {
  int fd = -1;
  Problem problem;
  bool port_in_use = false;
};
Listener listen_at(const std::string& host, int port);

/// A free port of 127.0.0.1, kept while `socket` is open for a server that is
/// to listen on it. The socket is bound with SO_REUSEADDR and does not listen:
/// Linux lets another one with SO_REUSEADDR bind the port by its number, but
/// gives it to nobody who asks for any free one.
struct ReservedPort {
  FileDescriptor socket;
  int port = 0;
  Problem problem;
};
ReservedPort reserve_loopback_port();

/// The numeric address of this machine on the route to `host`; loopback when
/// that is empty, 127.0.0.1, ::1 or "localhost". Another name may stand for
/// loopback on its own host alone, as 127.0.1.1 does on Debian: then, or
/// without a route, it is the address of the first interface that is up, if
/// any.
std::string local_address_towards(const std::string& host);

/// The port that a socket is bound to; 0 for none.
int port_of(int fd);

/// A connection; without one, after `timeout` at the latest, an empty
/// descriptor.
FileDescriptor connect_to(const std::string& host,
                          int port,
                          std::chrono::milliseconds timeout);

/// Has the kernel find out within a minute that a host has gone: a switch that
/// restarts, or a virtual machine that moves, may take half of that.
void keep_alive(int fd);

/// Raises the soft limit of open files, as far as the hard one allows, to what
/// a job of so many ranks may need.
void allow_connections(int world_size);

/// Waits until `host` resolves, at most `timeout`: in a cluster a name may
/// appear a moment after the worker.
Problem wait_until_resolved(const std::string& host,
                            std::chrono::milliseconds timeout);

/// Waits until somebody accepts connections at `host`:`port`, at most
/// `timeout`. Calls `check` after each attempt that failed, at least once a
/// second for each address of `host`; an exception of it ends the wait.
Problem wait_until_listening(const std::string& host,
                             int port,
                             std::chrono::milliseconds timeout,
                             const std::function<void()>& check);

}  // namespace ddp::detail
