#pragma once

#include <string>
#include <vector>

namespace launcher {

/// How an option is written.
struct OptionSpelling {
  std::string name;        ///< without its dashes: "nproc-per-node"
  std::string short_name;  ///< "r" of -r; empty: there is none
  bool has_value = false;  ///< else it is a switch
};

/// Writes out the options that are cut short (`--nproc=2`), in either spelling,
/// as Python's argparse takes them. What follows the first argument that is no
/// option belongs to the program and stays as it is. Pure.
///
/// A name that could be several options is torchrun's, if it is that of one of
/// torchrun's: so options of our own make no command line of torchrun's
/// ambiguous.
///
/// @throws UsageError with the candidates when a name could be several options
///
/// Example:
/// @code
///   written_out({"--redirect", "3", "./train", "--redirect"}, options);
///   // {"--redirects", "3", "./train", "--redirect"}
/// @endcode
std::vector<std::string> written_out(
    std::vector<std::string> arguments,
    const std::vector<OptionSpelling>& options);

}  // namespace launcher
