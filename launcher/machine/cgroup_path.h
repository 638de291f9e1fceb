#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// Folder of this process's own cgroup in the version 2 hierarchy, or in that
/// of a controller of version 1 ("memory"); nothing when that hierarchy is not
/// mounted, or not where this process is.
std::optional<std::string> own_cgroup_folder(std::string_view controller = "");

/// The same, from the texts of /proc/self/mountinfo and /proc/self/cgroup.
std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership,
                                         std::string_view controller = "");

}  // namespace launcher
