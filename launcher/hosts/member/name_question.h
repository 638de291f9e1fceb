#pragma once

#include <functional>
#include <string>

#include "launcher/net/name_answer.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Host that a NameLookup looks up.
struct NameQuestion {
  std::string host;
  std::string option;      ///< option that names the host
  bool is_awaited = true;  ///< see judge()
  RendezvousTimeouts timeouts{};
  std::function<NameAnswer(const std::string& host)> ask = ask_name_service;
};

}  // namespace launcher
