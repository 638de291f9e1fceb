#include "launcher/doctor/all_reduce_facts.h"

#include <sstream>
#include <type_traits>

#include "ddp/base/text/number.h"

namespace launcher {

AllReduceFacts parse_all_reduce(std::string_view text) {
  AllReduceFacts facts;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      continue;
    }
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    const auto take = [&](const char* known, auto& field) {
      if (name == known) {
        using Number = std::decay_t<decltype(field)>;
        field = ddp::detail::parse_number<Number>(value).value_or(field);
      }
    };
    if (name == "libtorch") {
      facts.libtorch = value;
    } else if (name == "backend") {
      facts.backend = value;
    } else if (name == "error" && facts.error.empty()) {
      facts.error = value;  // errors of other ranks follow from the first
    }
    take("cuda", facts.cuda);
    take("nccl", facts.nccl);
    take("nccl_built", facts.nccl_built);
    take("devices", facts.devices);
    take("ranks", facts.ranks);
    take("bytes", facts.bytes);
    take("seconds", facts.seconds);
  }
  return facts;
}

double bus_bandwidth(const AllReduceFacts& facts) {
  if (facts.ranks < 1 || facts.seconds <= 0) {
    return 0;
  }
  const double ranks = facts.ranks;
  return 2 * (ranks - 1) / ranks * static_cast<double>(facts.bytes) /
         facts.seconds;
}

}  // namespace launcher
