#pragma once

#include <memory>
#include <sstream>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/workers/output/console.h"

namespace launcher {

/// Writes ddprun's own messages as "ddprun: text" to its stderr, in order with
/// the workers' lines. As with torchrun, LOGLEVEL (INFO, WARNING, ...) sets the
/// lowest level shown; the default is WARNING. Only this unit uses the logging
/// library.
///
/// Example:
/// @code
///   log.warn("restart ", restarts, " of ", most);
/// @endcode
class Log {
 public:
  Log(Console& console, const Environment& environment);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  template <typename... Parts>
  void info(const Parts&... parts) {
    write(Level::info, joined(parts...));
  }
  template <typename... Parts>
  void warn(const Parts&... parts) {
    write(Level::warn, joined(parts...));
  }

 private:
  enum class Level { info, warn };
  struct Impl;

  template <typename... Parts>
  static std::string joined(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
  }
  void write(Level level, const std::string& text);

  std::unique_ptr<Impl> impl_;
};

}  // namespace launcher
