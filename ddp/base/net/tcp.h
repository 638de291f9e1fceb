#pragma once

#include <chrono>
#include <string>

#include "ddp/base/file_descriptor.h"
#include "ddp/base/net/address.h"

// TCP for ranks and for ddprun. All sockets are non-blocking and closed on
// exec.
namespace ddp::detail {

/// A system error text for an address ("Connection refused"), or "" on success.
using Problem = std::string;

/// Makes a socket that listens at the address; else empty, with errno.
FileDescriptor listen_at(const SocketAddress& address);

/// Listens for the other ranks. If `host` resolves to a loopback address,
/// listens there only, so that other hosts cannot reach it; otherwise at all
/// addresses of this machine. Returns an empty descriptor and errno on failure.
FileDescriptor listen_for_ranks(const std::string& host, int port);

/// A port that is reserved while `socket` is open, for a server that will
/// listen on it. The socket is bound with SO_REUSEADDR and does not listen.
/// Linux lets another socket with SO_REUSEADDR, such as the socket of a c10d
/// store, bind the port by its number and listen on it, but does not give the
/// port to a socket that requests any free port. So the port cannot be lost in
/// between.
struct ReservedPort {
  FileDescriptor socket{};
  int port = 0;
  int error = 0;  ///< errno; 0: the port is reserved
};
/// Reserves a port of all addresses of this machine; 0: any free one.
ReservedPort reserve_port(int port);
/// Reserves any free port of 127.0.0.1.
ReservedPort reserve_loopback_port();

/// Accepts the next connection; else empty, with errno.
FileDescriptor accept_from(const FileDescriptor& listener);

/// Starts to connect. Returns an empty descriptor and errno if that fails at
/// once. When the socket is writable, connect_error() is the result.
FileDescriptor begin_to_connect(const SocketAddress& address);
/// Returns errno, or 0 if the connection is open.
int connect_error(const FileDescriptor& socket);

/// Connects to a server within `timeout`. Each address of `host` gets an equal
/// part of it. Returns an empty descriptor on failure.
FileDescriptor connect_to(const std::string& host,
                          int port,
                          std::chrono::milliseconds timeout);

/// Makes the kernel detect within a minute that a host is gone. Shorter limits
/// would be wrong: the restart of a switch or the migration of a virtual
/// machine may take half a minute.
void keep_alive(const FileDescriptor& socket);

/// Raises the soft limit of open files to the needs of a job with this number
/// of ranks, at most to the hard limit.
void allow_connections(int world_size);

/// Waits until `host` resolves, at most `timeout`: in a cluster a name may
/// appear shortly after the worker has started.
Problem wait_until_resolved(const std::string& host,
                            std::chrono::milliseconds timeout);

/// Waits until a server accepts connections at `host`:`port`, at most
/// `timeout`.
Problem wait_until_listening(const std::string& host,
                             int port,
                             std::chrono::milliseconds timeout);

}  // namespace ddp::detail
