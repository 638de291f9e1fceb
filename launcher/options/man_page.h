#pragma once

#include <string>
#include <vector>

namespace launcher {

/// Documentation of an option.
struct OptionText {
  std::string names;  ///< "-r, --redirects"
  std::string type;   ///< type of its value; empty: none
  std::string help;
};

/// Options under one title.
struct OptionGroup {
  std::string title;
  std::vector<OptionText> options;
};

/// Returns the manual page ddprun(1), in roff. Pure function.
std::string man_page(const std::vector<OptionGroup>& groups);

}  // namespace launcher
