#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

// Values of the rendezvous options. Every function throws std::invalid_argument
// with "expected ..., but got ...".
namespace launcher {

/// Returns the names that --rdzv-backend accepts.
const std::vector<std::string>& backend_names();

/// Parses --rdzv-conf: "key=value,...", or an empty text. Ignores spaces around
/// keys and values, and quotes around the whole text, as from a YAML file. If a
/// key is repeated, the last value wins.
std::map<std::string, std::string> parse_settings(std::string_view text);

/// Checks the values of the known settings.
///
/// @returns a line for each unknown setting, with the most similar known one
std::vector<std::string> check_settings(
    const std::map<std::string, std::string>& settings);

/// Parses --local-addr: the name or address of a host, without a port, or an
/// empty text.
std::string parse_host(std::string_view text);

}  // namespace launcher
