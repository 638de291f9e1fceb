#include "samples/support/command_line.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <ddp/record_errors.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace samples {
namespace {

constexpr int kUsageError = 2;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// Returns an error text, or "", as CLI11 expects of validators.
std::string check_name(const std::vector<std::string>& names,
                       const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end()
             ? ""
             : "Expected " + c10::Join("|", names) + ", but got " + name + ".";
}

}  // namespace

using Option = CommandLine::Option;

Option& Option::check(std::function<bool(double)> holds,
                      const std::string& what) {
  option_.check([holds = std::move(holds), what](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return end == text.c_str() + text.size() && holds(value)
               ? ""
               : "Expected " + what + ", but got " + text + ".";
  });
  return *this;
}

Option& Option::at_least(double least) {
  return check([least](double value) { return value >= least; },
               c10::str("a number of at least ", least));
}

Option& Option::between(double least, double most) {
  return check([=](double value) { return least <= value && value <= most; },
               c10::str("a number of ", least, " to ", most));
}

Option& Option::above_zero() {
  return check([](double value) { return value > 0; }, "a number above 0");
}

Option& Option::one_of(const std::vector<std::string>& names) {
  option_.check(
      [names](const std::string& name) { return check_name(names, name); });
  return *this;
}

Option& Option::count(int values) {
  option_.expected(values);
  return *this;
}

Option& Option::needs(const std::string& flag) {
  option_.needs(flag);
  return *this;
}

Option& Option::excludes(const std::string& flag) {
  option_.excludes(flag);
  return *this;
}

CommandLine::CommandLine(const std::string& name,
                         const std::string& description)
    : app_(std::make_unique<CLI::App>(description, name)) {}

CommandLine::~CommandLine() = default;

template <typename T>
Option CommandLine::add(const std::string& flag,
                        T& target,
                        const std::string& help) {
  if constexpr (std::is_same_v<T, bool>) {
    return Option(*app_->add_flag(flag, target, help));
  } else {
    auto* option = app_->add_option(flag, target, help);
    if constexpr (IsVector<T>::value) {
      option->delimiter(',');
      if (!target.empty()) {
        option->capture_default_str();
      }
    } else if constexpr (!IsOptional<T>::value) {
      option->capture_default_str();
    }
    return Option(*option);
  }
}

#define DDP_SAMPLES_OPTION(...)     \
  template Option CommandLine::add( \
      const std::string&, __VA_ARGS__&, const std::string&)
DDP_SAMPLES_OPTION(bool);
DDP_SAMPLES_OPTION(int);
DDP_SAMPLES_OPTION(int64_t);
DDP_SAMPLES_OPTION(uint64_t);
DDP_SAMPLES_OPTION(double);
DDP_SAMPLES_OPTION(std::string);
DDP_SAMPLES_OPTION(std::optional<int>);
DDP_SAMPLES_OPTION(std::optional<int64_t>);
DDP_SAMPLES_OPTION(std::optional<double>);
DDP_SAMPLES_OPTION(std::optional<std::string>);
DDP_SAMPLES_OPTION(std::vector<int>);
DDP_SAMPLES_OPTION(std::vector<int64_t>);
DDP_SAMPLES_OPTION(std::vector<double>);
DDP_SAMPLES_OPTION(std::vector<std::string>);
#undef DDP_SAMPLES_OPTION

Option CommandLine::add_names(
    const std::string& flag,
    const std::vector<std::string>& names,
    const std::function<void(const std::string&)>& set,
    const std::string& help) {
  auto* option = app_->add_option_function<std::string>(flag, set, help);
  option->type_name(c10::Join("|", names));
  return Option(*option).one_of(names);
}

std::optional<EarlyExit> CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    return EarlyExit{0, app_->help()};
  } catch (const CLI::ParseError& error) {
    return refuse(error.what());
  }
}

EarlyExit CommandLine::refuse(const std::string& what) const {
  return {kUsageError,
          app_->get_name() + ": " + what + " --help lists the options.\n"};
}

int CommandLine::run(int argc,
                     const char* const* argv,
                     const std::function<void()>& body) {
  if (const auto exit = parse(argc, argv)) {
    return exit->print();
  }
  return ddp::record_errors([&] {
    body();
    return 0;
  });
}

int EarlyExit::print() const {
  (code == 0 ? std::cout : std::cerr) << text;
  return code;
}

}  // namespace samples
