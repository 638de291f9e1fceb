#pragma once

#include "launcher/options/options.h"

// Parts of the rendezvous in parsed options.
namespace launcher::test {

/// Endpoint of rank 0's store from the options; port -1: they give none.
inline Endpoint store_of(const LaunchOptions& options) {
  const Endpoint* store = given_store(options.rendezvous);
  return store != nullptr ? *store : Endpoint{"", -1};
}

inline int hosts_of(const LaunchOptions& options) {
  return host_count(options.rendezvous);
}

inline int rank_of(const LaunchOptions& options) {
  return host_rank(options.rendezvous).value_or(-1);
}

inline bool has_coordinator(const LaunchOptions& options) {
  return std::holds_alternative<CoordinatedConfig>(options.rendezvous);
}

}  // namespace launcher::test
