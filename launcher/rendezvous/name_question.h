#pragma once

#include <functional>
#include <string>

#include "launcher/rendezvous/meeting.h"
#include "launcher/rendezvous/name_answer.h"

namespace launcher {

/// What a NameLookup is to find.
struct NameQuestion {
  std::string host;
  std::string option;      ///< that names it
  bool is_awaited = true;  ///< see judge()
  Patience patience{};
  std::function<NameAnswer(const std::string& host)> ask = ask_name_service;
};

}  // namespace launcher
