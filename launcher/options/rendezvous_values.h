#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

// The values of options about how hosts meet. Every function throws
// std::invalid_argument with "expected ..., but got ...".
namespace launcher {

/// The names that --rdzv-backend takes.
const std::vector<std::string>& backend_names();

/// --rdzv-conf: "key=value,...", or nothing at all. Spaces around keys and
/// values do not count, nor quotes around all of it, which a file of YAML
/// keeps; of a key that comes twice the last value does.
std::map<std::string, std::string> parse_settings(std::string_view text);

/// Checks the values of those settings that somebody reads.
///
/// @returns a line for each of the others, with the name that was probably
///   meant
std::vector<std::string> check_settings(
    const std::map<std::string, std::string>& settings);

/// --local-addr: the name or address of a host, without a port; or nothing.
std::string parse_host(std::string_view text);

}  // namespace launcher
