#include "test/launcher/ddprun/networks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "test/support/temporary_folder.h"

namespace launcher::test {
namespace {

Fd make_network() {
  Fd network;
  // A namespace belongs to a thread.
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) == 0) {
      network.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    }
  }).join();
  return network;
}

/// Returns a path that other processes can open.
std::string path_of(const Fd& network) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" +
         std::to_string(network.get());
}

bool succeeds_in(const Fd& network, const std::string& command) {
  const pid_t child = check(::fork(), "fork");
  if (child == 0) {
    if (::setns(network.get(), CLONE_NEWNET) == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    }
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

/// Makes `file` the content of `path` for this child alone.
void bind_over(const std::string& file, const char* path) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(file.c_str(), path, "", MS_BIND, nullptr) != 0) {
    ::_exit(97);
  }
}

}  // namespace

Networks::Networks() : hosts_{make_network(), make_network()} {
  if (!hosts_[0] || !hosts_[1]) {
    error_ = "no network namespace can be made: only root may";
    return;
  }
  run(0,
      "ip link add cable type veth peer name cable netns " +
          path_of(hosts_[1]));
  for (const int host : {0, 1}) {
    run(host,
        "ip link set lo up && ip address add " + address(host) +
            "/24 dev cable && ip link set cable up && ip address add " +
            unreachable_address(host) + "/32 dev lo");
  }
}

void Networks::run(int host, const std::string& command) {
  if (error_.empty() &&
      !succeeds_in(hosts_[static_cast<size_t>(host)], command)) {
    error_ = "this failed in a network namespace: " + command;
  }
}

std::function<void()> Networks::enter(int host) const {
  const int network = hosts_[static_cast<size_t>(host)].get();
  const std::string name = "host" + std::to_string(host);
  return [network, name] {
    if (::setns(network, CLONE_NEWNET) != 0 || ::unshare(CLONE_NEWUTS) != 0 ||
        ::sethostname(name.data(), name.size()) != 0) {
      ::_exit(97);
    }
  };
}

void Networks::cut() const {
  for (const int host : {0, 1}) {
    if (!succeeds_in(hosts_[static_cast<size_t>(host)],
                     "ip neigh replace " + address(1 - host) +
                         " lladdr 02:00:00:00:00:99 nud permanent dev cable")) {
      throw std::runtime_error("the cable cannot be cut");
    }
  }
}

std::function<void()> with_hosts_file(const std::string& file,
                                      const std::function<void()>& enter) {
  return [file, enter] {
    bind_over(file, "/etc/hosts");
    enter();
  };
}

std::function<void()> enter_network(const std::string& command,
                                    const std::function<void()>& then) {
  if (!make_network()) {
    return {};
  }
  return [command, then] {
    if (::unshare(CLONE_NEWNET) != 0 || std::system(command.c_str()) != 0) {
      ::_exit(97);
    }
    then();
  };
}

std::function<void()> enter_silence(const std::string& folder) {
  if (!make_network()) {
    return {};
  }
  const std::string file = folder + "/resolv.conf";
  ddp::test::write_file(file, "nameserver 127.0.0.1\noptions timeout:30\n");
  return [file] {
    bind_over(file, "/etc/resolv.conf");
    if (::unshare(CLONE_NEWNET) != 0) {
      ::_exit(97);
    }
    // The socket stays open. Without a reader the kernel would report that the
    // port is closed.
    const int server = ::socket(AF_INET, SOCK_DGRAM, 0);
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::ioctl(server, SIOCSIFFLAGS, &loopback) != 0 ||
        ::bind(server,
               reinterpret_cast<const sockaddr*>(&address),
               sizeof(address)) != 0) {
      ::_exit(97);
    }
  };
}

}  // namespace launcher::test
