#include "launcher/options/abbreviation.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "launcher/base/error.h"

namespace launcher {
namespace {

/// Options of torchrun 2.11, including its --help.
constexpr std::array<std::string_view, 31> kTorchrunOptions{
    "help",
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "module",
    "no-python",
    "run-path",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "virtual-local-rank",
    "use-env",
};

using Meanings = std::vector<const OptionSpelling*>;

/// Kind of an argument, which determines the kind of the next one.
enum class ArgumentKind { alone, before_its_value, of_program };

bool is_torchruns(const OptionSpelling* option) {
  return std::find(kTorchrunOptions.begin(),
                   kTorchrunOptions.end(),
                   option->name) != kTorchrunOptions.end();
}

/// Returns the options that a complete or abbreviated name can stand for.
Meanings meanings_of(std::string name,
                     const std::vector<OptionSpelling>& options) {
  std::replace(name.begin(), name.end(), '_', '-');
  Meanings all;
  for (const OptionSpelling& option : options) {
    if (option.name == name) {
      return {&option};
    }
    if (!name.empty() && option.name.rfind(name, 0) == 0) {
      all.push_back(&option);
    }
  }
  Meanings torchruns;
  std::copy_if(
      all.begin(), all.end(), std::back_inserter(torchruns), is_torchruns);
  return torchruns.size() == 1 ? torchruns : all;
}

[[noreturn]] void refuse_ambiguous(const std::string& written,
                                   const Meanings& meanings) {
  std::string candidates;
  for (const OptionSpelling* option : meanings) {
    candidates += (candidates.empty() ? "--" : ", --") + option->name;
  }
  throw UsageError(written +
                   ": expected the name of one option, but it could be " +
                   candidates + "; write more of it");
}

ArgumentKind write_out_long(std::string& argument,
                            const std::vector<OptionSpelling>& options) {
  const size_t end = std::min(argument.find('='), argument.size());
  const auto found = meanings_of(argument.substr(2, end - 2), options);
  if (found.empty()) {
    return ArgumentKind::of_program;
  }
  if (found.size() > 1) {
    refuse_ambiguous(argument.substr(0, end), found);
  }
  const bool has_its_value = end != argument.size();
  argument.replace(2, end - 2, found.front()->name);
  return found.front()->has_value && !has_its_value
             ? ArgumentKind::before_its_value
             : ArgumentKind::alone;
}

/// Classifies short options: "-m", "-r" before its value, "-r3", "-mr3".
ArgumentKind kind_of_short(const std::string& argument,
                           const std::vector<OptionSpelling>& options) {
  for (size_t at = 1; at < argument.size(); ++at) {
    const auto option = std::find_if(
        options.begin(), options.end(), [&](const OptionSpelling& known) {
          return known.short_name == argument.substr(at, 1);
        });
    if (option == options.end()) {
      return ArgumentKind::of_program;
    }
    if (option->has_value) {
      return at + 1 == argument.size() ? ArgumentKind::before_its_value
                                       : ArgumentKind::alone;
    }
  }
  return ArgumentKind::alone;
}

}  // namespace

std::vector<std::string> expand_abbreviations(
    std::vector<std::string> arguments,
    const std::vector<OptionSpelling>& options) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    std::string& argument = arguments[index];
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
      break;
    }
    const ArgumentKind kind = argument[1] == '-'
                                  ? write_out_long(argument, options)
                                  : kind_of_short(argument, options);
    if (kind == ArgumentKind::of_program) {
      break;
    }
    index += kind == ArgumentKind::before_its_value ? 1 : 0;
  }
  return arguments;
}

}  // namespace launcher
