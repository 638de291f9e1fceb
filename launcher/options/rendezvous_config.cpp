#include "launcher/options/rendezvous_config.h"

#include <type_traits>

#include "launcher/base/overloaded.h"

namespace launcher {
namespace {

template <typename Common, typename Config>
Common* common_of(Config& config) {
  return std::visit(
      [](auto& kind) -> Common* {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_base_of_v<CoordinatedConfig, Kind>) {
          return &kind;
        } else {
          return nullptr;
        }
      },
      config);
}

}  // namespace

std::string backend_name(const RendezvousConfig& config) {
  return std::visit(
      Overloaded{[](const UncoordinatedConfig&) { return "static"; },
                 [](const StaticConfig&) { return "static"; },
                 [](const C10dConfig&) { return "c10d"; }},
      config);
}

const CoordinatedConfig* coordinated(const RendezvousConfig& config) {
  return common_of<const CoordinatedConfig>(config);
}

CoordinatedConfig* coordinated(RendezvousConfig& config) {
  return common_of<CoordinatedConfig>(config);
}

const CoordinatorEndpoint* coordinator_endpoint(
    const RendezvousConfig& config) {
  using Found = const CoordinatorEndpoint*;
  return std::visit(
      Overloaded{[](const UncoordinatedConfig&) -> Found { return nullptr; },
                 [](const StaticConfig& known) { return &known.coordinator; },
                 [](const C10dConfig& known) { return &known.coordinator; }},
      config);
}

const Endpoint* given_store(const RendezvousConfig& config) {
  using Found = const Endpoint*;
  return std::visit(
      Overloaded{[](const UncoordinatedConfig& known) { return &known.master; },
                 [](const StaticConfig& known) { return &known.store; },
                 [](const C10dConfig&) -> Found { return nullptr; }},
      config);
}

int host_count(const RendezvousConfig& config) {
  return std::visit(Overloaded{[](const UncoordinatedConfig& known) {
                                 return known.host_count;
                               },
                               [](const CoordinatedConfig& known) {
                                 return known.terms.most_hosts;
                               }},
                    config);
}

std::optional<int> host_rank(const RendezvousConfig& config) {
  return std::visit(Overloaded{[](const UncoordinatedConfig& known) {
                                 return std::optional(known.host_rank);
                               },
                               [](const CoordinatedConfig& known) {
                                 return known.wanted_rank;
                               }},
                    config);
}

bool may_coordinate(const RendezvousConfig& config) {
  const CoordinatorEndpoint* known = coordinator_endpoint(config);
  return known != nullptr && known->is_here.value_or(true);
}

}  // namespace launcher
