#include "launcher/cli/completion.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <sstream>

namespace launcher {
namespace {

using Words = std::vector<std::string>;

Words parts_of(const std::string& text, char separator) {
  Words parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

std::string joined(const Words& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : between) + word;
  }
  return text;
}

/// "-r, --redirects": -r and --redirects.
Words names_of(const OptionText& option) {
  Words names = parts_of(option.names, ',');
  for (std::string& name : names) {
    name.erase(0, name.find('-'));
  }
  return names;
}

/// The spelling with _ for -, or nothing where it is the same.
std::string underscored(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? "" : other;
}

/// A word of a shell, in which nothing stands for something else.
std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

std::string bash_action(const ValueHint& hint) {
  switch (hint.kind) {
    case ValueHint::Kind::words:
      return "-W " + shell_quoted(joined(hint.words, " "));
    case ValueHint::Kind::files:
      return "-f";
    case ValueHint::Kind::folders:
      return "-d";
    case ValueHint::Kind::commands:
      return "-c";
    case ValueHint::Kind::hosts:
      return "-A hostname";
    case ValueHint::Kind::unknown:
      break;
  }
  return "-W ''";
}

// Readline takes = and : for ends of words, and is given what follows them
// only.
constexpr const char* kBashStart = R"(# Completion of ddprun for bash.

# Puts what compgen finds for the value $2, each after $1, into COMPREPLY.
_ddprun_compgen() {
  local head=$1 value=$2
  shift 2
  case $1 in
    -f | -d) compopt -o filenames 2>/dev/null ;;
    *) compopt +o default 2>/dev/null ;;
  esac
  mapfile -t COMPREPLY < <(compgen -P "$head" "$@" -- "$value")
}

# The words up to the cursor, as the shell sees them, into `words`.
_ddprun_words() {
  local line=$COMP_LINE word blank i
  words=()
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    blank=${line%%[![:space:]]*}
    line=${line#"$blank"}
    line=${line#"$word"}
    if ((i > 0)) && [[ -z $blank ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
}

# The option that $1 means, with - for _ and written out, into `option`.
_ddprun_option() {
  local name
  option=$1
  [[ $1 == --* ]] || return 0
  option=${1//_/-}
  for name in $names; do
    [[ $name == "$option" ]] && return 0
  done
  for name in $names; do
    [[ $name == "$option"* ]] && option=$name && return 0
  done
}
)";

constexpr const char* kBashEnd = R"(
_ddprun_complete() {
  local last=$((${#words[@]} - 1)) at=1 option action=() shown
  local current=${words[last]}
  while ((at < last)); do
    case ${words[at]} in
      -- | -) break ;;
      --*=*) ;;
      -*)
        _ddprun_option "${words[at]}"
        if _ddprun_action "$option" && ((++at == last)); then
          _ddprun_compgen '' "$current" "${action[@]}"
          return
        fi
        ;;
      *) break ;;
    esac
    ((++at))
  done
  if ((at < last)); then
    _ddprun_compgen '' "$current" -f
  elif [[ $current == --*=* ]]; then
    _ddprun_option "${current%%=*}"
    _ddprun_action "$option" || action=(-W '')
    _ddprun_compgen "${current%%=*}=" "${current#*=}" "${action[@]}"
  elif [[ $current == -* ]]; then
    shown=$names
    [[ $current == *_* ]] && shown=$underscored
    _ddprun_compgen '' "$current" -W "$shown"
  else
    _ddprun_compgen '' "$current" -f
  fi
}

_ddprun() {
  local words
  _ddprun_words
  _ddprun_complete
  # Of a word with = or : in it only the rest is asked for.
  local typed=${COMP_WORDS[COMP_CWORD]}
  [[ $typed == [=:]* ]] && typed=
  local before=${words[-1]%"$typed"}
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}

complete -o default -F _ddprun ddprun
)";

std::string zsh_action(const ValueHint& hint) {
  switch (hint.kind) {
    case ValueHint::Kind::words:
      return "(" + joined(hint.words, " ") + ")";
    case ValueHint::Kind::files:
      return "_files";
    case ValueHint::Kind::folders:
      return "_files -/";
    case ValueHint::Kind::commands:
      return "_command_names";
    case ValueHint::Kind::hosts:
      return "_hosts";
    case ValueHint::Kind::unknown:
      break;
  }
  return " ";
}

/// Text in which no sign ends a part of a specification of _arguments.
std::string zsh_plain(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    plain += std::string("\\[]:").find(c) == std::string::npos ? "" : "\\";
    plain += c == '\n' ? ' ' : c;
  }
  return plain;
}

/// What _arguments is told of one name of an option.
std::string zsh_spec(const std::string& name, const OptionText& option) {
  const std::string help = "[" + zsh_plain(option.help) + "]";
  if (option.type.empty()) {
    return shell_quoted("*" + name + help);
  }
  const bool is_short = name.compare(0, 2, "--") != 0;
  return shell_quoted("*" + name + (is_short ? "+" : "=") + help + ":" +
                      zsh_plain(option.type) + ":" +
                      zsh_action(hint_of(option.type)));
}

}  // namespace

ValueHint hint_of(const std::string& type) {
  using Kind = ValueHint::Kind;
  const auto is_meant_so = [](const std::string& part) {
    return !part.empty() && std::none_of(part.begin(), part.end(), [](char c) {
      return std::isupper(static_cast<unsigned char>(c)) != 0;
    });
  };
  Words words = parts_of(type, '|');
  words.erase(
      std::remove_if(words.begin(), words.end(), std::not_fn(is_meant_so)),
      words.end());
  if (!words.empty()) {
    return {Kind::words, words};
  }
  return {type == "FILE"               ? Kind::files
          : type == "DIR"              ? Kind::folders
          : type == "COMMAND"          ? Kind::commands
          : type.rfind("HOST", 0) == 0 ? Kind::hosts
                                       : Kind::unknown,
          {}};
}

std::string bash_completion(const std::vector<OptionGroup>& groups) {
  Words all;
  Words others;
  std::ostringstream cases;
  for (const OptionGroup& group : groups) {
    for (const OptionText& option : group.options) {
      const Words names = names_of(option);
      all.insert(all.end(), names.begin(), names.end());
      for (const std::string& name : names) {
        const std::string other = underscored(name);
        if (!other.empty()) {
          others.push_back(other);
        }
      }
      if (!option.type.empty()) {
        cases << "    " << joined(names, " | ") << ") action=("
              << bash_action(hint_of(option.type)) << ") ;;\n";
      }
    }
  }
  std::ostringstream script;
  script << kBashStart
         << "\n# How compgen completes the value of an option, into `action`; "
            "fails for\n# one without a value.\n_ddprun_action() {\n  case $1 "
            "in\n"
         << cases.str() << "    *) return 1 ;;\n  esac\n}\n"
         << kBashEnd;
  std::string text = script.str();
  const std::string start = "_ddprun() {\n";
  text.insert(text.find("\n" + start) + 1 + start.size(),
              "  local names=" + shell_quoted(joined(all, " ")) +
                  "\n  local underscored=" + shell_quoted(joined(others, " ")) +
                  "\n");
  return text;
}

std::string zsh_completion(const std::vector<OptionGroup>& groups) {
  std::ostringstream script;
  // A spec that starts with ! is understood, and not shown.
  script << "#compdef ddprun\n"
            "# Completion of ddprun for zsh.\n\n"
            "local hidden='!'\n"
            "[[ $PREFIX == *_* ]] && hidden=\n"
            "_arguments -S -A '-*' : \\\n";
  for (const OptionGroup& group : groups) {
    for (const OptionText& option : group.options) {
      for (const std::string& name : names_of(option)) {
        script << "  " << zsh_spec(name, option) << " \\\n";
        const std::string other = underscored(name);
        if (!other.empty()) {
          script << "  \"$hidden\"" << zsh_spec(other, option) << " \\\n";
        }
      }
    }
  }
  script << "  '1:program:_files' \\\n  '*:argument:_files'\n";
  return script.str();
}

}  // namespace launcher
