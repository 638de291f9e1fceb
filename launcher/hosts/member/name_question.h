#pragma once

#include <functional>
#include <string>

#include "launcher/net/name_answer.h"
#include "launcher/options/meeting.h"

namespace launcher {

/// What a NameLookup is to find.
struct NameQuestion {
  std::string host;
  std::string option;      ///< that names it
  bool is_awaited = true;  ///< see judge()
  RendezvousTimeouts patience{};
  std::function<NameAnswer(const std::string& host)> ask = ask_name_service;
};

}  // namespace launcher
