#include "dp/servers/detail/handshake.h"

#include <sstream>

#include "ddp/base/text/record.h"
#include "ddp/job/text_collectives.h"

namespace dp::detail {
namespace {

constexpr const char* kServes = "serve()";
constexpr const char* kWorks = "a ParameterClient";

// Positions of the fields.
constexpr size_t kOptions = 0;
constexpr size_t kRole = 1;
constexpr size_t kServerOptions = 2;
constexpr size_t kSaved = 3;

std::string field_of(const std::string& claim, size_t position) {
  return ddp::detail::fields_of(claim).at(position);
}

}  // namespace

std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role,
                  const ResumePoints& saved) {
  std::ostringstream all;
  all << "servers(" << options.servers() << "), ";
  if (options.mode() == UpdateMode::synchronous) {
    all << "mode(synchronous)";
  } else {
    all << "mode(asynchronous), staleness_bound(" << options.staleness_bound()
        << ")";
  }
  all << ", timeout(" << options.timeout().count() << " ms) in a world of "
      << world_size;
  std::ostringstream of_servers;
  of_servers << "gradients_held(" << options.gradients_held()
             << "), checkpoint_every(" << options.checkpoint_every()
             << "), resume(" << (options.resume() ? "true" : "false") << ")";
  return ddp::detail::join_fields({all.str(),
                                   role == Role::server ? kServes : kWorks,
                                   of_servers.str(),
                                   to_text(saved)});
}

std::string handshake_problem(const std::vector<std::string>& claims,
                              int servers) {
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    const auto difference = [&](size_t field, const std::string& on) {
      const auto first = field_of(claims[0], field);
      const auto own = field_of(claims[rank], field);
      return own == first ? std::string()
                          : "Expected the same ParameterServerOptions on all " +
                                on + ", but rank 0 has " + first + ", and " +
                                who + " has " + own;
    };
    if (auto problem = difference(kOptions, "ranks"); !problem.empty()) {
      return problem;
    }
    const std::string role = field_of(claims[rank], kRole);
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
    saved.push_back(resume_points_of_text(
        field_of(claims[static_cast<size_t>(server)], kSaved)));
  }
  return saved;
}

}  // namespace dp::detail
