#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// A text with names in it, as Python's string.Template has them and torchrun
/// fills them in by safe_substitute: `$name` and `${name}` stand for a value,
/// `$$` for a `$`. A name that has no value, and every other `$`, stays as it
/// is. Values are not looked at again.
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

  /// The template has this name in it.
  bool has(std::string_view name) const;

  std::string filled(const Values& values) const;

 private:
  struct Piece {
    std::string text;  ///< as it stands in the pattern
    std::string name;  ///< empty: the text itself is meant
  };

  void add_text(std::string_view text);

  std::vector<Piece> pieces_;
};

}  // namespace launcher
