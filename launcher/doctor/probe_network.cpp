#include "launcher/doctor/probes.h"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>
#include <vector>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/base/text_file.h"
#include "launcher/net/address.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

namespace fs = std::filesystem;

bool has_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(entry.path(), error) == link) {
      return true;
    }
  }
  return false;
}

std::string process_with(const std::string& inode) {
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos ||
        !has_socket(entry.path(), link)) {
      continue;
    }
    const std::string name = read_text(entry.path() / "comm");
    return name.substr(0, name.find('\n')) + " (pid " + pid + ")";
  }
  return "";
}

NameFacts look_up(const std::string& name, const ddp::detail::Resolved& found) {
  NameFacts facts{name, "", {}};
  for (const SocketAddress& address : found.addresses) {
    facts.addresses.push_back(
        {numeric_host(address), is_own(address), is_loopback(address)});
  }
  if (found.addresses.empty()) {
    facts.error = found.error == 0 ? "no address" : ::gai_strerror(found.error);
  }
  return facts;
}

PortFacts look_at(const RendezvousEndpoint::Port& port) {
  PortFacts facts{port.number, port.option, "", "", port.may_be_met};
  try {
    PortReservation{port.number};
  } catch (const LaunchError& error) {
    const std::string text = error.what();
    facts.refusal = text.substr(0, text.find(';'));
    facts.holder = port_holder(port.number);
  }
  return facts;
}

}  // namespace

std::optional<std::string> listening_inode(std::string_view table, int port) {
  // Fields: number local remote state queues timer retransmits uid timeout
  // inode ...
  constexpr const char* kListens = "0A";
  std::array<char, 8> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    const std::vector<std::string> words{
        std::istream_iterator<std::string>(fields), {}};
    if (words.size() > 9 && words[3] == kListens &&
        words[1].substr(words[1].find(':')) == wanted.data()) {
      return words[9];
    }
  }
  return std::nullopt;
}

std::string port_holder(int port) {
  for (const char* table : {"/proc/net/tcp6", "/proc/net/tcp"}) {
    if (const auto inode = listening_inode(read_text(table), port)) {
      return process_with(*inode);
    }
  }
  return "";
}

RendezvousEndpoint rendezvous_endpoint(const LaunchOptions& options) {
  return std::visit(
      Overloaded{[](const UncoordinatedConfig& known) {
                   return known.master.port == 0
                              ? RendezvousEndpoint{}
                              : RendezvousEndpoint{
                                    known.master.host,
                                    {{known.master.port, "--master-port"}}};
                 },
                 [](const StaticConfig& known) {
                   const CoordinatorEndpoint& there = known.coordinator;
                   RendezvousEndpoint point{there.endpoint.host, {}};
                   if (there.is_here != false) {
                     point.ports = {{known.store.port, "--master-port"},
                                    {there.endpoint.port, there.port_option}};
                   }
                   return point;
                 },
                 [](const C10dConfig& known) {
                   const CoordinatorEndpoint& there = known.coordinator;
                   RendezvousEndpoint point{there.endpoint.host, {}};
                   if (there.is_here != false) {
                     point.ports = {{there.endpoint.port,
                                     there.port_option,
                                     !there.is_here.has_value()}};
                   }
                   return point;
                 }},
      options.rendezvous);
}

NetworkFacts probe_network(const std::string& host_name,
                           const RendezvousEndpoint& point) {
  NetworkFacts facts;
  facts.host = look_up(host_name, ddp::detail::resolve(host_name, 0));
  if (!point.host) {
    return facts;
  }
  constexpr int kAnyPort = 9;  // no packet is sent
  const auto there = ddp::detail::resolve(*point.host, kAnyPort);
  const std::vector<SocketAddress>& found = there.addresses;
  facts.endpoint = look_up(*point.host, there);
  if (std::any_of(found.begin(), found.end(), is_own)) {
    for (const RendezvousEndpoint::Port& port : point.ports) {
      facts.ports.push_back(look_at(port));
    }
  }
  return facts;
}

}  // namespace launcher
