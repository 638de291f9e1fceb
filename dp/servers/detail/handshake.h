#pragma once

#include <string>
#include <vector>

#include "dp/servers/detail/resume_points.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

enum class Role { server, worker };

/// What a rank says of itself when it comes, and why what the ranks said makes
/// no job: one line, or "". Pure.
std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role,
                  const ResumePoints& saved = {});
std::string handshake_problem(const std::vector<std::string>& claims,
                              int servers);
/// What the servers said that they could go on from.
std::vector<ResumePoints> resume_points_of(
    const std::vector<std::string>& claims, int servers);

}  // namespace dp::detail
