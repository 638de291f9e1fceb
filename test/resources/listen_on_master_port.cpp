// Does what rank 0's store does: listens on MASTER_PORT and is reached.
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
