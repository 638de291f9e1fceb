#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// Returns the folder of this process's own cgroup: in the version 2 hierarchy,
/// or in the version 1 hierarchy of `controller` ("memory"). Returns
/// std::nullopt if that hierarchy is not mounted or does not show this
/// process's cgroup.
std::optional<std::string> own_cgroup_folder(std::string_view controller = "");

/// Returns the folder of this process's own cgroup and the folders above it,
/// whose limits apply, too. In the version 1 hierarchy of a controller also
/// where a container's mount does not show which cgroup is its own.
std::vector<std::string> limiting_cgroup_folders(
    std::string_view controller = "");

/// Same as own_cgroup_folder(), from the texts of /proc/self/mountinfo and
/// /proc/self/cgroup.
std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership,
                                         std::string_view controller = "");

}  // namespace launcher
