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

/// Returns the folder of this process's own cgroup and the folders above it;
/// the limits of all of them apply. For a version 1 controller whose hierarchy
/// does not show the process's cgroup (in a container), begins with the mount
/// itself.
std::vector<std::string> limiting_cgroup_folders(
    std::string_view controller = "");

/// Same as own_cgroup_folder(), from the texts of /proc/self/mountinfo and
/// /proc/self/cgroup.
std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership,
                                         std::string_view controller = "");

}  // namespace launcher
