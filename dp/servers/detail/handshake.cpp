#include "dp/servers/detail/handshake.h"

#include <sstream>

namespace dp::detail {
namespace {

constexpr const char* kServes = "serve()";
constexpr const char* kWorks = "a ParameterClient";

// Line numbers in a claim.
constexpr int kOptions = 0;
constexpr int kRole = 1;
constexpr int kServerOptions = 2;
constexpr int kSaved = 3;

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
                  const ResumePoints& saved) {
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
       << "gradients_held(" << options.gradients_held()
       << "), checkpoint_every(" << options.checkpoint_every() << "), resume("
       << (options.resume() ? "true" : "false") << ")\n"
       << write_saved(saved);
  return text.str();
}

std::string handshake_problem(const std::vector<std::string>& claims,
                              int servers) {
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    const auto difference = [&](int line, const std::string& on) {
      const auto first = line_of(claims[0], line);
      const auto own = line_of(claims[rank], line);
      return own == first ? std::string()
                          : "Expected the same ParameterServerOptions on all " +
                                on + ", but rank 0 has " + first + ", and " +
                                who + " has " + own;
    };
    if (auto problem = difference(kOptions, "ranks"); !problem.empty()) {
      return problem;
    }
    const std::string role = line_of(claims[rank], kRole);
    const bool is_server = rank < static_cast<size_t>(servers);
    if (role != (is_server ? kServes : kWorks)) {
      return "Expected " + std::string(is_server ? kServes : kWorks) + " on " +
             who + ", but got " + role + "; with servers(" +
             std::to_string(servers) + ") the first " +
             std::to_string(servers) + " serve";
    }
    if (auto problem = difference(kServerOptions, "servers");
        is_server && !problem.empty()) {
      return problem;
    }
  }
  return "";
}

std::vector<ResumePoints> resume_points_of(
    const std::vector<std::string>& claims, int servers) {
  std::vector<ResumePoints> saved;
  for (int server = 0; server < servers; ++server) {
    saved.push_back(
        read_saved(line_of(claims[static_cast<size_t>(server)], kSaved)));
  }
  return saved;
}

}  // namespace dp::detail
