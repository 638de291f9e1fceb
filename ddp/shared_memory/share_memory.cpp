#include "ddp/shared_memory/share_memory.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "ddp/shared_memory/sum_board.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kPatience{10'000};
constexpr int64_t kTextBytes = 128;  // of a message to all ranks

using Clock = std::chrono::steady_clock;

at::Tensor tensor_of(const std::string& text) {
  auto tensor = at::zeros({kTextBytes}, at::kByte);
  std::memcpy(tensor.data_ptr(),
              text.data(),
              std::min(text.size(), static_cast<size_t>(kTextBytes) - 1));
  return tensor;
}

std::string text_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

std::vector<std::string> gather_texts(c10d::Backend& group,
                                      const std::string& text) {
  std::vector<at::Tensor> own{tensor_of(text)};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    all[0].push_back(at::empty({kTextBytes}, at::kByte));
  }
  group.allgather(all, own)->wait();
  std::vector<std::string> texts;
  for (const auto& tensor : all[0]) {
    texts.push_back(text_of(tensor));
  }
  return texts;
}

int milliseconds_until(Clock::time_point end) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void wait_readable(int socket, Clock::time_point end) {
  pollfd poll{socket, POLLIN, 0};
  const int ready = check(retry_interrupted([&] {
                            return ::poll(&poll, 1, milliseconds_until(end));
                          }),
                          "poll");
  if (ready == 0) {
    throw std::system_error(ETIMEDOUT, std::generic_category(), "a rank");
  }
}

/// @throws std::system_error if the process at the other end is another user's.
void check_user(int socket) {
  struct ucred peer {};
  socklen_t size = sizeof(peer);
  check(::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size),
        "SO_PEERCRED");
  if (peer.uid != ::geteuid()) {
    throw std::system_error(
        EPERM, std::generic_category(), "a process of another user");
  }
}

/// The address of an abstract socket, which is not in the file system.
struct SocketName {
  explicit SocketName(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                  name.size());
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }

  sockaddr_un address{};
  socklen_t size = 0;
};

FileDescriptor unix_socket() {
  return FileDescriptor(
      check(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
}

std::string random_name() {
  std::random_device random;
  return "ddp-" + std::to_string(random()) + "-" + std::to_string(random());
}

/// The message that carries one descriptor.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }

  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

void send_descriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* part = CMSG_FIRSTHDR(&message.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  check(static_cast<int>(retry_interrupted(
            [&] { return ::sendmsg(socket, &message.header, MSG_NOSIGNAL); })),
        "sendmsg");
}

FileDescriptor receive_descriptor(int socket, Clock::time_point end) {
  wait_readable(socket, end);
  DescriptorMessage message;
  check(static_cast<int>(retry_interrupted([&] {
          return ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
        })),
        "recvmsg");
  const cmsghdr* part = CMSG_FIRSTHDR(&message.header);
  if (part == nullptr || part->cmsg_type != SCM_RIGHTS) {
    throw std::system_error(EPROTO, std::generic_category(), "no descriptor");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(part), sizeof(int));
  return FileDescriptor(descriptor);
}

/// Gives the descriptor to so many ranks. Other processes are turned away.
void give(int listener, int descriptor, int count) {
  const auto end = Clock::now() + kPatience;
  while (count > 0) {
    wait_readable(listener, end);
    const FileDescriptor rank(
        check(retry_interrupted([&] {
                return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
              }),
              "accept"));
    try {
      check_user(rank.get());
      send_descriptor(rank.get(), descriptor);
      --count;
    } catch (const std::system_error&) {
      // A stranger, or a rank that gives up and says so below.
    }
  }
}

FileDescriptor fetch(const std::string& name) {
  const auto socket = unix_socket();
  const SocketName at(name);
  check(retry_interrupted(
            [&] { return ::connect(socket.get(), at.get(), at.size); }),
        "connect");
  check_user(socket.get());
  return receive_descriptor(socket.get(), Clock::now() + kPatience);
}

/// The result of one rank: the memory, or the reason why the rank has none.
struct Part {
  std::shared_ptr<SharedMemory> memory;
  std::string problem;
};

template <class Body>
Part attempt(const Body& body) {
  try {
    return {body(), ""};
  } catch (const std::system_error& error) {
    return {nullptr, error.what()};
  }
}

std::shared_ptr<SharedMemory> map(FileDescriptor file, const HostMemory& host) {
  const auto ranks = static_cast<int>(host.hosts[host.own_host].size());
  auto memory = std::make_shared<SharedMemory>(
      std::move(file), ranks, SumBoard::bytes(ranks));
  memory->hold(host.own_rank);
  return memory;
}

/// As the first rank of a host. Collective over the group.
Part share_as_first(c10d::Backend& group, const HostMemory& host) {
  const auto ranks = static_cast<int>(host.hosts[host.own_host].size());
  std::string name = random_name();
  FileDescriptor listener;
  FileDescriptor file;
  Part part = attempt([&] {
    file = SharedMemory::make_file(ranks, SumBoard::bytes(ranks));
    listener = unix_socket();
    const SocketName at(name);
    check(::bind(listener.get(), at.get(), at.size), "bind");
    check(::listen(listener.get(), ranks), "listen");
    return std::shared_ptr<SharedMemory>();
  });
  if (!part.problem.empty()) {
    name.clear();
  }
  gather_texts(group, name);
  return name.empty() ? part : attempt([&] {
    give(listener.get(), file.get(), ranks - 1);
    return map(std::move(file), host);
  });
}

/// As another rank of a host. Collective over the group.
Part share_as_other(c10d::Backend& group, const HostMemory& host) {
  const auto names = gather_texts(group, "");
  const int first = host.hosts[host.own_host][0];
  const std::string& name = names[static_cast<size_t>(first)];
  return name.empty() ? Part()
                      : attempt([&] { return map(fetch(name), host); });
}

/// Sorts the ranks by the texts of their hosts.
HostMemory hosts_of(const std::vector<std::string>& texts, int rank) {
  HostMemory result;
  std::map<std::string, size_t> indices;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t index =
        indices.emplace(texts[i], indices.size()).first->second;
    result.hosts.resize(indices.size());
    auto& ranks = result.hosts[index];
    if (static_cast<int>(i) == rank) {
      result.own_host = index;
      result.own_rank = static_cast<int>(ranks.size());
    }
    ranks.push_back(static_cast<int>(i));
  }
  return result;
}

}  // namespace

/// Abstract sockets are seen within a network namespace.
std::string host_name() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat network {};
  if (boot_id.empty() || ::stat("/proc/self/ns/net", &network) != 0) {
    return "";
  }
  return boot_id + " " + std::to_string(network.st_dev) + " " +
         std::to_string(network.st_ino);
}

HostMemory share_memory(c10d::Backend& group, const std::string& host) {
  const auto texts = gather_texts(group, host);
  auto result = hosts_of(texts, group.getRank());
  const bool is_wanted =
      std::all_of(texts.begin(), texts.end(), [](const std::string& text) {
        return !text.empty();
      });
  if (!is_wanted || result.hosts.size() == texts.size()) {
    return result;
  }
  auto part = result.own_rank == 0 ? share_as_first(group, result)
                                   : share_as_other(group, result);
  const auto problems = gather_texts(
      group, part.problem.empty() && !part.memory ? "?" : part.problem);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    const auto& problem = problems[static_cast<size_t>(rank)];
    if (!problem.empty()) {
      if (group.getRank() == 0) {
        TORCH_WARN(
            "The ranks of a host sum gradients over Gloo, not in "
            "shared memory, because rank ",
            rank,
            " could not map it: ",
            problem,
            ". DDP_SHARED_MEMORY=0 chooses Gloo without this warning");
      }
      return result;
    }
  }
  part.memory->note_holders();
  result.memory = std::move(part.memory);
  return result;
}

}  // namespace ddp::detail
