#include "launcher/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

#include "ddp/base/text/nearest.h"
#include "ddp/base/version.h"
#include "launcher/base/error.h"
#include "launcher/options/abbreviation.h"
#include "launcher/options/help_text.h"
#include "launcher/options/values.h"

namespace launcher {
namespace {

/// Returns the spellings that remain after expand_abbreviations().
std::string spellings(const OptionSpelling& option) {
  return (option.short_name.empty() ? "" : "-" + option.short_name + ",") +
         "--" + option.name;
}

/// CLI11 takes the next argument as the value of "--name=". No argument
/// contains a NUL, so a NUL can mark the empty value.
constexpr char kEmptyValue = '\0';

std::vector<std::string> with_empty_values_marked(
    std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument.compare(0, 2, "--") == 0 &&
        argument.find('=') == argument.size() - 1) {
      argument += kEmptyValue;
    }
  }
  return arguments;
}

std::string without_mark(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), kEmptyValue), text.end());
  return text;
}

std::string variable(const std::string& name) {
  std::string result = "PET_";
  for (const char c : name) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return result;
}

/// Formats ddprun --help in lines of 80 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_usage(const CLI::App*, std::string) const override {
    return std::string("\nUsage:\n  ") + kUsage + "\nExamples:\n" + kExamples;
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::string short_name;
    for (const auto& name : option->get_snames()) {
      short_name += "-" + name + ", ";
    }
    return short_name + "--" + option->get_lnames().front();
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return type.empty() ? "" : " " + type;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::istringstream words(option->get_description());
    std::string text;
    size_t column = 0;
    for (std::string word; words >> word; column += word.size() + 1) {
      const bool wraps = column + word.size() > 79 - kNameColumns;
      text += wraps ? "\n" : column == 0 ? "" : " ";
      text += word;
      column = wraps ? 0 : column;
    }
    return text;
  }

 private:
  static constexpr size_t kNameColumns = 32;
};

/// Removes the second empty line that CLI11 leaves between groups.
std::string with_single_gaps(std::string text) {
  for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) {
    text.erase(at, 1);
  }
  return text;
}

}  // namespace

struct CommandLine::Impl {
  struct Entry {
    OptionSpelling spelling;
    CommandLine::Setter set;
    std::function<void(CLI::App&, Entry&)> add_to;
    std::optional<std::string> given{};  ///< value on the command line
  };

  std::vector<OptionSpelling> options{{"help", "h"}, {"version", ""}};
  std::vector<Entry> entries;
  std::string group;  // of the options added next

  void add(const OptionSpelling& spelling,
           const Setter& set,
           std::function<void(CLI::App&, Entry&)> add_to) {
    options.push_back(spelling);
    entries.push_back({spelling, set, std::move(add_to)});
  }

  void add_value(const OptionSpelling& spelling,
                 const std::string& type,
                 const std::string& help,
                 const Setter& set) {
    add(spelling, set, [=, title = group](CLI::App& app, Entry& entry) {
      const auto take = [&entry](const std::string& given) {
        const std::string text = without_mark(given);
        // Python's argparse accepts -r=3 for -r3.
        const bool has_equals =
            !entry.spelling.short_name.empty() && text.rfind('=', 0) == 0;
        entry.given = has_equals ? text.substr(1) : text;
      };
      app.add_option_function<std::string>(spellings(spelling), take, help)
          ->type_name(type)
          ->group(title)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    });
  }

  /// Adds only the options that may be among the arguments: CLI11 compares each
  /// option with all previous ones, which takes long.
  void add_given(CLI::App& app, const std::vector<std::string>& arguments) {
    for (Entry& entry : entries) {
      const std::string& name = entry.spelling.name;
      const bool may_be_given =
          !entry.spelling.short_name.empty() ||
          std::any_of(
              arguments.begin(), arguments.end(), [&](const auto& argument) {
                return argument.size() > 2 &&
                       argument.compare(2, name.size(), name) == 0;
              });
      if (may_be_given) {
        entry.add_to(app, entry);
      }
    }
    add_questions(app);
  }

  void add_all(CLI::App& app) {
    for (Entry& entry : entries) {
      entry.add_to(app, entry);
    }
    add_questions(app);
  }

  /// Adds --help and --version, which come last.
  void add_questions(CLI::App& app) const {
    app.set_help_flag("-h,--help", "Prints this and ends")->group(group);
    app.set_version_flag("--version",
                         "ddprun " DDP_VERSION_TEXT,
                         "Prints the version and ends")
        ->group(group);
  }

  std::string help() {
    CLI::App app(kDescription, "ddprun");
    app.formatter(std::make_shared<HelpFormatter>());
    app.footer(kFooter);
    app.set_help_flag();
    add_all(app);
    return with_single_gaps(app.help());
  }

  /// Calls the setters, in the order of --help. Defaults are from
  /// `environment`, because CLI11 would call getenv().
  void set_all(const Environment& environment) const {
    for (const Entry& entry : entries) {
      const std::string name = variable(entry.spelling.name);
      const std::string* text = find_variable(environment, name);
      try {
        if (entry.given) {
          entry.set(*entry.given);
        } else if (text != nullptr && !text->empty()) {
          entry.set(*text);
        }
      } catch (const std::invalid_argument& error) {
        throw UsageError((entry.given ? "--" + entry.spelling.name : name) +
                         ": " + error.what());
      }
    }
  }
};

CommandLine::CommandLine() : impl_(std::make_unique<Impl>()) {}

CommandLine::~CommandLine() = default;

void CommandLine::group(const std::string& title) {
  impl_->group = title;
}

void CommandLine::value(const std::string& name,
                        const std::string& type,
                        const std::string& help,
                        const Setter& set,
                        const std::string& short_name) {
  impl_->add_value({name, short_name, true}, type, help, set);
}

void CommandLine::toggle(const std::string& name,
                         const std::string& help,
                         const std::function<void()>& set,
                         const std::string& short_name) {
  const OptionSpelling spelling{name, short_name, false};
  const auto set_if = [set](const std::string& text) {
    if (parse_switch(text)) {
      set();
    }
  };
  impl_->add(
      spelling,
      set_if,
      [=, title = impl_->group](CLI::App& app, Impl::Entry& entry) {
        const auto take = [&entry](int64_t count) {
          entry.given = count > 0 ? "1" : "0";
        };
        app.add_flag_function(spellings(spelling), take, help)->group(title);
      });
}

std::variant<std::vector<std::string>, Information> CommandLine::parse(
    std::vector<std::string> arguments, const Environment& environment) {
  arguments = with_empty_values_marked(
      expand_abbreviations(std::move(arguments), impl_->options));
  CLI::App app;
  app.set_help_flag();  // add_questions() adds it last
  app.prefix_command();
  impl_->add_given(app, arguments);
  // CLI11 expects a reversed vector
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return Information{impl_->help()};
  } catch (const CLI::CallForVersion& version) {
    return Information{std::string(version.what()) + "\n"};
  } catch (const std::invalid_argument&) {
    // CLI11 does not name the option in this exception.
    throw UsageError(
        "expected no value, 0, 1, true or false for a switch such as "
        "--standalone, but got something else");
  } catch (const CLI::ParseError& error) {
    throw UsageError(without_mark(error.what()) + "; see ddprun --help");
  }
  impl_->set_all(environment);
  std::vector<std::string> rest = app.remaining();
  std::transform(rest.begin(), rest.end(), rest.begin(), without_mark);
  return rest;
}

std::vector<OptionGroup> CommandLine::describe() {
  CLI::App app;
  app.set_help_flag();
  impl_->add_all(app);
  const HelpFormatter formatter;
  std::vector<OptionGroup> groups;
  for (const CLI::Option* option : app.get_options()) {
    if (groups.empty() || groups.back().title != option->get_group()) {
      groups.push_back({option->get_group(), {}});
    }
    groups.back().options.push_back({formatter.make_option_name(option, false),
                                     option->get_type_name(),
                                     option->get_description()});
  }
  return groups;
}

std::vector<std::string> CommandLine::unknown_variables(
    const Environment& environment) const {
  const std::string prefix = "PET_";
  std::vector<std::string> known;
  for (const Impl::Entry& entry : impl_->entries) {
    known.push_back(variable(entry.spelling.name).substr(prefix.size()));
  }
  std::vector<std::string> lines;
  for (auto entry = environment.lower_bound(prefix);
       entry != environment.end() && entry->first.rfind(prefix, 0) == 0;
       ++entry) {
    const std::string name = entry->first.substr(prefix.size());
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      lines.push_back(entry->first + ": no option has this variable" +
                      ddp::detail::did_you_mean(name, known, prefix));
    }
  }
  return lines;
}

std::string CommandLine::suggestion_for(const std::string& argument) const {
  if (argument.compare(0, 2, "--") != 0) {
    return "";
  }
  std::string name = argument.substr(2, argument.find('=') - 2);
  std::replace(name.begin(), name.end(), '_', '-');
  std::vector<std::string> known;
  for (const OptionSpelling& option : impl_->options) {
    known.push_back(option.name);
  }
  return ddp::detail::did_you_mean(name, known, "--");
}

}  // namespace launcher
