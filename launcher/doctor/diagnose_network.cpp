#include <algorithm>
#include <sstream>

#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

constexpr const char* kGloo = "GLOO_SOCKET_IFNAME";
constexpr const char* kNccl = "NCCL_SOCKET_IFNAME";

std::string joined_addresses(const NameFacts& facts) {
  std::vector<std::string> items;
  for (const HostAddress& address : facts.addresses) {
    items.push_back(address.text);
  }
  return list_text(items);
}

bool has_own(const NameFacts& facts) {
  return std::any_of(facts.addresses.begin(),
                     facts.addresses.end(),
                     [](const HostAddress& address) { return address.is_own; });
}

bool is_loopback_only(const NameFacts& facts) {
  return std::all_of(
      facts.addresses.begin(),
      facts.addresses.end(),
      [](const HostAddress& address) { return address.is_loopback; });
}

Finding diagnose_name(const NameFacts& host, const JobShape& job) {
  const std::string subject = "host name";
  const std::string fix = "correct /etc/hosts, or the name service";
  if (!host.error.empty()) {
    return warning(subject,
                   host.name + " cannot be resolved (" + host.error + ")",
                   "add it with its address to /etc/hosts: programs look up "
                   "the name of their own host");
  }
  if (!has_own(host)) {
    return warning(subject,
                   host.name + " is " + joined_addresses(host) +
                       ", which no interface of this host has",
                   fix);
  }
  if (job.hosts > 1 && is_loopback_only(host)) {
    return warning(subject,
                   host.name + " is " + joined_addresses(host) +
                       " here, where no other host comes",
                   "name this host to others by its address, or " + fix);
  }
  return all_well(subject, host.name + " is " + joined_addresses(host));
}

Finding diagnose_endpoint(const NameFacts& endpoint, const JobShape& job) {
  const std::string subject = "endpoint";
  if (!endpoint.error.empty()) {
    return failing(
        subject,
        endpoint.name + " cannot be resolved (" + endpoint.error + ")",
        "check its spelling and /etc/hosts, or give an address");
  }
  const bool is_own = has_own(endpoint);
  const std::string text =
      joined_addresses(endpoint) == endpoint.name
          ? endpoint.name
          : endpoint.name + " (" + joined_addresses(endpoint) + ")";
  if (job.hosts > 1 && is_loopback_only(endpoint)) {
    return warning(subject,
                   text + " is reached from this host alone",
                   "give an address that the other hosts can reach, unless "
                   "all run here");
  }
  if (!is_own && job.host_rank == 0) {
    return failing(subject,
                   text + " is no address of this host, whose node rank is 0",
                   "give this host's address, or another host node rank 0");
  }
  return all_well(subject,
                  text + (is_own ? " is this host" : " is another host"));
}

/// Checks the reverse names of addresses. Jobs do not need them, but many other
/// tools do.
Findings diagnose_reverse_names(const NetworkFacts& network) {
  Findings findings;
  const HostAddress* known = nullptr;
  for (const NameFacts* facts :
       {&network.host, network.endpoint ? &*network.endpoint : nullptr}) {
    if (facts == nullptr || facts->addresses.empty()) {
      continue;
    }
    const HostAddress& address = facts->addresses.front();
    const bool is_known = known != nullptr && known->text == address.text;
    known = &address;
    if (is_known || address.is_loopback) {
      continue;
    }
    const std::string subject = "reverse name";
    findings.push_back(
        address.name.empty()
            ? all_well(subject, address.text + " has no name, and needs none")
        : address.is_of_name
            ? all_well(subject, address.text + " is " + address.name)
            : warning(subject,
                      address.text + " is " + address.name +
                          ", which is another address",
                      "correct /etc/hosts or the name service: who goes by "
                      "names finds another host"));
  }
  return findings;
}

Finding diagnose_port(const PortFacts& port) {
  if (port.refusal.empty()) {
    return all_well(
        "port", std::to_string(port.port) + " (" + port.option + ") is free");
  }
  if (port.may_be_met && port.holder.rfind("ddprun (", 0) == 0) {
    return all_well("port",
                    std::to_string(port.port) + " (" + port.option +
                        ") is held by " + port.holder +
                        ", which this one would call there");
  }
  return failing(
      "port",
      port.refusal + (port.holder.empty() ? "" : ", by " + port.holder),
      "end that, or give another " + port.option);
}

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    items.push_back(item);
  }
  return items;
}

std::string interfaces_text(const NetworkFacts& network) {
  std::vector<std::string> names;
  for (const NetworkInterface& each : network.interfaces) {
    names.push_back(each.name);
  }
  return names.empty() ? "none" : list_text(names);
}

const NetworkInterface* find_interface(const NetworkFacts& network,
                                       const std::string& name) {
  const auto found = std::find_if(
      network.interfaces.begin(),
      network.interfaces.end(),
      [&](const NetworkInterface& each) { return each.name == name; });
  return found == network.interfaces.end() ? nullptr : &*found;
}

Finding diagnose_gloo(const MachineFacts& machine, const JobShape& job) {
  const NetworkFacts& network = machine.network;
  const std::string* setting = find_variable(machine.environment, kGloo);
  if (setting == nullptr || setting->empty()) {
    const std::string& way = network.route_interface;
    return all_well("Gloo",
                    job.hosts == 1 ? "over loopback, as all ranks are here"
                    : way.empty()
                        ? "over the interface that leads to rank 0"
                        : "over " + way + ", which leads to the endpoint");
  }
  const std::string text = kGloo + ("=" + *setting);
  for (const std::string& name : items_of(*setting)) {
    const NetworkInterface* found = find_interface(network, name);
    if (found == nullptr) {
      return failing("Gloo",
                     text + ", but this host has " + interfaces_text(network),
                     "name one of these, or unset it");
    }
    if (!found->is_up || found->addresses.empty()) {
      return failing("Gloo",
                     text + ", but " + name + " " +
                         (found->is_up ? "has no address" : "is down"),
                     "bring it up, name another one, or unset it");
    }
    if (job.hosts > 1 && found->is_loopback) {
      return warning("Gloo",
                     text + " does not leave this host",
                     "name an interface that the other hosts are behind");
    }
  }
  return all_well("Gloo", "over " + *setting + " (" + kGloo + ")");
}

/// Matches names by the syntax of NCCL_SOCKET_IFNAME and of NCCL's defaults: ^
/// excludes the names that follow, = matches whole names, otherwise prefixes
/// match.
std::vector<std::string> interfaces_matching(const NetworkFacts& network,
                                             std::string pattern) {
  const bool is_negated = pattern.rfind('^', 0) == 0;
  pattern.erase(0, is_negated ? 1 : 0);
  const bool is_whole = pattern.rfind('=', 0) == 0;
  pattern.erase(0, is_whole ? 1 : 0);
  const std::vector<std::string> wanted = items_of(pattern);
  std::vector<std::string> names;
  for (const NetworkInterface& each : network.interfaces) {
    const bool matches =
        std::any_of(wanted.begin(), wanted.end(), [&](const auto& item) {
          return is_whole ? each.name == item : each.name.rfind(item, 0) == 0;
        });
    if (each.is_up && !each.addresses.empty() && matches != is_negated) {
      names.push_back(each.name);
    }
  }
  return names;
}

Finding diagnose_nccl_sockets(const MachineFacts& machine,
                              const JobShape& job) {
  const std::string* setting = find_variable(machine.environment, kNccl);
  const std::string by =
      setting != nullptr && !setting->empty() ? kNccl + ("=" + *setting) : "";
  const auto names = nccl_interfaces(machine);
  if (names.empty()) {
    return failing("NCCL's sockets",
                   (by.empty() ? "no interface is up"
                               : by + " fits no interface that is up") +
                       ", but this host has " +
                       interfaces_text(machine.network),
                   by.empty() ? "bring one up" : "correct or unset it");
  }
  const bool leaves =
      std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return !find_interface(machine.network, name)->is_loopback;
      });
  const std::string text = "over " + list_text(names);
  return job.hosts > 1 && !leaves
             ? warning("NCCL's sockets",
                       text + ", which does not leave this host",
                       std::string("name an interface that the other hosts "
                                   "are behind: ") +
                           kNccl)
             : all_well("NCCL's sockets",
                        by.empty() ? text : text + " (" + by + ")");
}

}  // namespace

std::vector<std::string> nccl_interfaces(const MachineFacts& machine) {
  const std::string* setting = find_variable(machine.environment, kNccl);
  if (setting != nullptr && !setting->empty()) {
    return interfaces_matching(machine.network, *setting);
  }
  for (const char* pattern : {"ib", "^docker,lo,virbr", "docker", "lo"}) {
    const auto names = interfaces_matching(machine.network, pattern);
    if (!names.empty()) {
      return names;
    }
  }
  return interfaces_matching(machine.network, "virbr");
}

Findings diagnose_network(const MachineFacts& machine, const JobShape& job) {
  const NetworkFacts& network = machine.network;
  Findings findings{diagnose_name(network.host, job)};
  if (network.endpoint) {
    findings.push_back(diagnose_endpoint(*network.endpoint, job));
  } else {
    findings.push_back(all_well(
        "port", "none to keep free: with one host, each job takes a free one"));
  }
  for (const Finding& finding : diagnose_reverse_names(network)) {
    findings.push_back(finding);
  }
  for (const PortFacts& port : network.ports) {
    findings.push_back(diagnose_port(port));
  }
  findings.push_back(diagnose_gloo(machine, job));
  if (!machine.gpu.gpus.empty() ||
      find_variable(machine.environment, kNccl) != nullptr) {
    findings.push_back(diagnose_nccl_sockets(machine, job));
  }
  return findings;
}

}  // namespace launcher
