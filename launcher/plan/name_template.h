#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// A text with placeholders in the syntax of Python's string.Template, filled
/// like safe_substitute() in torchrun: `$name` and `${name}` stand for a value,
/// `$$` for a `$`. A name without a value, and every other `$`, stays
/// unchanged. Placeholders in values are not replaced.
///
/// Example:
/// @code
///   NameTemplate("[${rank}/$host] $5").filled({{"rank", "3"}});
///   // "[3/$host] $5"
/// @endcode
class NameTemplate {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  explicit NameTemplate(std::string_view pattern);

  std::string filled(const Values& values) const;

 private:
  struct Piece {
    std::string text;  ///< as in the pattern
    std::string name;  ///< empty: plain text
  };

  void add_text(std::string_view text);

  std::vector<Piece> pieces_;
};

}  // namespace launcher
