// Behaves like the store of rank 0: listens on MASTER_PORT and accepts a
// connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child.h"

int main() {
  const int on = 1;
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(std::atoi(std::getenv("MASTER_PORT")));
  inet_pton(AF_INET, std::getenv("MASTER_ADDR"), &address.sin_addr);
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  if (bind(server, any, sizeof(address)) != 0 || listen(server, 1) != 0) {
    std::perror("listen");
    return 1;
  }
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(client, any, sizeof(address)) != 0) {
    std::perror("connect");
    return 1;
  }
  say("reached");
}
