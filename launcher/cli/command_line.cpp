#include "launcher/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

#include "ddp/detail/nearest.h"
#include "launcher/cli/abbreviation.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/values.h"
#include "launcher/error.h"

namespace launcher {
namespace {

/// One spelling of each option and lines of 80 columns.
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

/// The library leaves two lines between groups.
std::string with_single_gaps(std::string text) {
  for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) {
    text.erase(at, 1);
  }
  return text;
}

std::string spellings(const std::string& name, const std::string& short_name) {
  std::string underscored = name;
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  std::string result = short_name.empty() ? "" : "-" + short_name + ",";
  result += "--" + name;
  return underscored == name ? result : result + ",--" + underscored;
}

/// The parsing library takes the next argument for the value of "--name=". No
/// argument holds a NUL, so one can stand for the empty value.
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

}  // namespace

struct CommandLine::Impl {
  /// An option whose default an environment variable gives.
  struct Default {
    CLI::Option* option;
    std::string variable;
    CommandLine::Setter set;
  };

  CLI::App app;
  std::vector<OptionSpelling> options{{"help", "h"}, {"version", ""}};
  std::vector<Default> defaults;
  std::string group;  // of the next options

  CLI::Option* add_value(const std::string& name,
                         const std::string& type,
                         const std::string& help,
                         const Setter& set,
                         const std::string& short_name) {
    const auto checked = [name, set](const std::string& text) {
      try {
        set(text);
      } catch (const std::invalid_argument& error) {
        throw UsageError("--" + name + ": " + error.what());
      }
    };
    const auto take =
        [checked, is_short = !short_name.empty()](const std::string& given) {
          const std::string text = without_mark(given);
          // Python's argparse takes -r=3 for -r3.
          checked(is_short && text.rfind('=', 0) == 0 ? text.substr(1) : text);
        };
    CLI::Option* option = app.add_option_function<std::string>(
        spellings(name, short_name), take, help);
    option->type_name(type)->group(group);
    options.push_back({name, short_name, true});
    defaults.push_back({option, variable(name), checked});
    return option;
  }

  /// --help and --version, which come last.
  void add_questions() {
    app.set_help_flag("-h,--help", "Prints this and ends")->group(group);
    app.set_version_flag(
           "--version", "ddprun " DDP_VERSION, "Prints the version and ends")
        ->group(group);
  }

  /// The parsing library would ask getenv().
  void take_defaults(const Environment& environment) const {
    for (const Default& entry : defaults) {
      const std::string* text = find_variable(environment, entry.variable);
      if (text != nullptr && !text->empty() && entry.option->count() == 0) {
        entry.set(*text);
      }
    }
  }
};

CommandLine::CommandLine() : impl_(std::make_unique<Impl>()) {
  CLI::App& app = impl_->app;
  app.name("ddprun");
  app.description(kDescription);
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_help_flag();  // its own comes last
  app.prefix_command();
}

CommandLine::~CommandLine() = default;

void CommandLine::group(const std::string& title) {
  impl_->group = title;
}

void CommandLine::value(const std::string& name,
                        const std::string& type,
                        const std::string& help,
                        const Setter& set,
                        const std::string& short_name) {
  impl_->add_value(name, type, help, set, short_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void CommandLine::values(const std::string& name,
                         const std::string& type,
                         const std::string& help,
                         const Setter& add) {
  impl_->add_value(name, type, help, add, "")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->trigger_on_parse()
      ->allow_extra_args(false);
}

void CommandLine::toggle(const std::string& name,
                         const std::string& help,
                         const std::function<void()>& set,
                         const std::string& short_name) {
  const auto set_if = [set](bool is_on) {
    if (is_on) {
      set();
    }
  };
  CLI::Option* option = impl_->app.add_flag_function(
      spellings(name, short_name),
      [set_if](int64_t count) { set_if(count > 0); },
      help);
  option->group(impl_->group);
  impl_->options.push_back({name, short_name, false});
  const std::string default_name = variable(name);
  impl_->defaults.push_back(
      {option, default_name, [set_if, default_name](const std::string& text) {
         try {
           set_if(parse_switch(text));
         } catch (const std::invalid_argument& error) {
           throw UsageError(default_name + ": " + error.what());
         }
       }});
}

std::variant<std::vector<std::string>, Information> CommandLine::parse(
    std::vector<std::string> arguments, const Environment& environment) {
  CLI::App& app = impl_->app;
  impl_->add_questions();
  arguments = with_empty_values_marked(
      written_out(std::move(arguments), impl_->options));
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  try {
    app.parse(arguments);
    impl_->take_defaults(environment);
  } catch (const CLI::CallForHelp&) {
    return Information{with_single_gaps(app.help())};
  } catch (const CLI::CallForVersion& version) {
    return Information{std::string(version.what()) + "\n"};
  } catch (const std::invalid_argument&) {
    // CLI11 lets it through without saying which one.
    throw UsageError(
        "expected no value, 0, 1, true or false for a switch such as "
        "--standalone, but got something else");
  } catch (const CLI::ParseError& error) {
    throw UsageError(without_mark(error.what()) + "; see ddprun --help");
  }
  std::vector<std::string> rest = app.remaining();
  std::transform(rest.begin(), rest.end(), rest.begin(), without_mark);
  return rest;
}

std::vector<OptionGroup> CommandLine::describe() {
  impl_->add_questions();
  const HelpFormatter formatter;
  std::vector<OptionGroup> groups;
  for (const CLI::Option* option : impl_->app.get_options()) {
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
  for (const Impl::Default& entry : impl_->defaults) {
    known.push_back(entry.variable.substr(prefix.size()));
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
