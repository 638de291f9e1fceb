#pragma once

#include <string>
#include <vector>

namespace launcher {

/// Spelling of an option.
struct OptionSpelling {
  std::string name;        ///< without its dashes: "nproc-per-node"
  std::string short_name;  ///< "r" of -r; empty: none
  bool has_value = false;  ///< false: a switch
};

/// Expands abbreviated options (`--nproc=2`), in either spelling, like Python's
/// argparse. All arguments from the first that is not an option belong to the
/// program and stay unchanged. Pure function.
///
/// If an abbreviation fits several options and exactly one of them is
/// torchrun's, it stands for torchrun's option. So ddprun's own options do not
/// make a torchrun command line ambiguous.
///
/// @throws UsageError with the candidates if an abbreviation fits several
///   options
///
/// Example:
/// @code
///   expand_abbreviations({"--redirect", "3", "./train", "--redirect"},
///   options);
///   // {"--redirects", "3", "./train", "--redirect"}
/// @endcode
std::vector<std::string> expand_abbreviations(
    std::vector<std::string> arguments,
    const std::vector<OptionSpelling>& options);

}  // namespace launcher
