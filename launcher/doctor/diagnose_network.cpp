#include <algorithm>

#include "launcher/doctor/diagnose.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

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

Finding diagnose_port(const PortFacts& port) {
  if (port.refusal.empty()) {
    return all_well(
        "port", std::to_string(port.port) + " (" + port.option + ") is free");
  }
  const std::string fix =
      "end the process that listens there (ss -ltnp), or give another " +
      port.option;
  return port.may_be_met ? warning("port",
                                   port.refusal,
                                   fix + ", unless it is a ddprun of this job")
                         : failing("port", port.refusal, fix);
}

}  // namespace

Findings diagnose_network(const MachineFacts& machine, const JobShape& job) {
  const NetworkFacts& network = machine.network;
  Findings findings{diagnose_name(network.host, job)};
  if (network.endpoint) {
    findings.push_back(diagnose_endpoint(*network.endpoint, job));
  } else {
    findings.push_back(all_well(
        "port", "none to keep free: with one host, each job takes a free one"));
  }
  for (const PortFacts& port : network.ports) {
    findings.push_back(diagnose_port(port));
  }
  return findings;
}

}  // namespace launcher
