#include "launcher/workers/output/log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <cctype>

namespace launcher {
namespace {

class ConsoleSink
    : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    console_.write({text.data(), text.size()});
  }
  void flush_() override {}

  Console& console_;
};

spdlog::level::level_enum level_of(const Environment& environment) {
  const std::string* variable = find_variable(environment, "LOGLEVEL");
  std::string name = variable != nullptr ? *variable : "warning";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return std::tolower(c);
  });
  const auto level = spdlog::level::from_str(name);
  const bool is_known = level != spdlog::level::off || name == "off";
  return is_known ? level : spdlog::level::warn;
}

}  // namespace

struct Log::Impl {
  explicit Impl(Console& console)
      : logger("ddprun", std::make_shared<ConsoleSink>(console)) {}

  spdlog::logger logger;
};

Log::Log(Console& console, const Environment& environment)
    : impl_(std::make_unique<Impl>(console)) {
  impl_->logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%n: %v", spdlog::pattern_time_type::local, "\n"));
  impl_->logger.set_level(level_of(environment));
}

Log::~Log() = default;

void Log::write(Level level, const std::string& text) {
  impl_->logger.log(
      level == Level::info ? spdlog::level::info : spdlog::level::warn, text);
}

}  // namespace launcher
