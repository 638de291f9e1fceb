#include "ddp/base/net/tcp.h"

#include <fcntl.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "test/support/catch.h"

using namespace ddp::detail;

namespace {

void await(const FileDescriptor& socket, short events) {
  pollfd waiting{socket.get(), events, 0};
  REQUIRE(::poll(&waiting, 1, 60'000) == 1);
}

/// A server on loopback, a client, and the server's end of its connection.
struct Connected {
  FileDescriptor listener = listen_at(addresses_of("127.0.0.1", 0).at(0));
  FileDescriptor client = begin_to_connect(own_end(listener));
  FileDescriptor accepted;

  Connected() {
    await(listener, POLLIN);
    accepted = accept_from(listener);
    await(client, POLLOUT);
    REQUIRE(connect_error(client) == 0);
  }
};

int option_of(const FileDescriptor& socket, int level, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  REQUIRE(::getsockopt(socket.get(), level, option, &value, &size) == 0);
  return value;
}

}  // namespace

TEST_CASE("no program that a process starts has the process's sockets") {
  const Connected three;
  const ReservedPort reserved = reserve_port(0);
  const ReservedPort local = reserve_loopback_port();
  const FileDescriptor ranks = listen_for_ranks("127.0.0.1", 0);
  const std::array all{&three.listener,
                       &three.client,
                       &three.accepted,
                       &reserved.socket,
                       &local.socket,
                       &ranks};
  for (const FileDescriptor* socket : all) {
    REQUIRE(*socket);
    CHECK((::fcntl(socket->get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(socket->get(), F_GETFL) & O_NONBLOCK) != 0);
  }
}

TEST_CASE("a server listens again while its old connections end") {
  Connected three;
  const SocketAddress place = own_end(three.listener);
  // The end that closes first keeps the port for a minute.
  three.accepted.reset();
  await(three.client, POLLIN);
  three.client.reset();
  three.listener.reset();
  CHECK(listen_at(place));
}

TEST_CASE("the kernel asks a silent host whether it is there") {
  const Connected three;
  CHECK(option_of(three.client, SOL_SOCKET, SO_KEEPALIVE) == 0);
  keep_alive(three.client);
  CHECK(option_of(three.client, SOL_SOCKET, SO_KEEPALIVE) == 1);
}

TEST_CASE("a port that cannot be had has a reason") {
  const Connected three;
  const ReservedPort taken = reserve_port(port_of(own_end(three.listener)));
  CHECK(!taken.socket);
  CHECK(taken.error == EADDRINUSE);
}

TEST_CASE("a connection ends with the owner of one end") {
  FileDescriptor client;
  {
    Connected three;
    client = std::move(three.client);
  }
  await(client, POLLIN);
  char byte = 0;
  CHECK(::recv(client.get(), &byte, 1, 0) == 0);
}
