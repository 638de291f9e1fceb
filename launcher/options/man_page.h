#pragma once

#include <string>
#include <vector>

namespace launcher {

/// An option as people read of it.
struct OptionText {
  std::string names;  ///< "-r, --redirects"
  std::string type;   ///< of its value; empty: it has none
  std::string help;
};

/// Options under one title.
struct OptionGroup {
  std::string title;
  std::vector<OptionText> options;
};

/// The manual page ddprun(1), in roff. Pure.
std::string man_page(const std::vector<OptionGroup>& groups);

}  // namespace launcher
