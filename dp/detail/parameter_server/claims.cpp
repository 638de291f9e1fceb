#include "dp/detail/parameter_server/claims.h"

#include <sstream>

namespace dp::detail {
namespace {

constexpr const char* kServes = "serve()";
constexpr const char* kWorks = "a ParameterClient";

std::string line_of(const std::string& text, int number) {
  std::istringstream lines(text);
  std::string result;
  for (int i = 0; i <= number; ++i) {
    result.clear();
    std::getline(lines, result);
  }
  return result;
}

}  // namespace

std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role,
                  const SavedStates& saved) {
  std::ostringstream text;
  text << "servers(" << options.servers() << "), ";
  if (options.mode() == UpdateMode::synchronous) {
    text << "mode(synchronous)";
  } else {
    text << "mode(asynchronous), staleness_bound(" << options.staleness_bound()
         << ")";
  }
  text << ", timeout(" << options.timeout().count() << " ms) in a world of "
       << world_size << "\n"
       << (role == Role::server ? kServes : kWorks) << "\n"
       << write_saved(saved);
  return text.str();
}

std::string claims_problem(const std::vector<std::string>& claims,
                           int servers) {
  const auto options = [](const auto& claim) { return line_of(claim, 0); };
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (options(claims[rank]) != options(claims[0])) {
      return "Expected the same ParameterServerOptions on all ranks, but rank "
             "0 has " +
             options(claims[0]) + ", and " + who + " has " +
             options(claims[rank]);
    }
    const std::string role = line_of(claims[rank], 1);
    const bool is_server = rank < static_cast<size_t>(servers);
    if (role != (is_server ? kServes : kWorks)) {
      return "Expected " + std::string(is_server ? kServes : kWorks) + " on " +
             who + ", but got " + role + "; with servers(" +
             std::to_string(servers) + ") the first " +
             std::to_string(servers) + " serve";
    }
  }
  return "";
}

std::vector<SavedStates> claims_saved(const std::vector<std::string>& claims,
                                      int servers) {
  std::vector<SavedStates> saved;
  for (int server = 0; server < servers; ++server) {
    saved.push_back(
        read_saved(line_of(claims[static_cast<size_t>(server)], 2)));
  }
  return saved;
}

}  // namespace dp::detail
