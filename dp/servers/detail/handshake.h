#pragma once

#include <string>
#include <vector>

#include "dp/servers/detail/resume_points.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

enum class Role { server, worker };

/// Returns the text with which a rank joins a session: its options, its role
/// and its resume points. Pure.
std::string claim(const ParameterServerOptions& options,
                  int world_size,
                  Role role,
                  const ResumePoints& saved = {});
/// Returns why the ranks' claims form no valid session: one line, or "". Pure.
std::string handshake_problem(const std::vector<std::string>& claims,
                              int servers);
/// Returns the resume points in the servers' claims. Pure.
std::vector<ResumePoints> resume_points_of(
    const std::vector<std::string>& claims, int servers);

}  // namespace dp::detail
