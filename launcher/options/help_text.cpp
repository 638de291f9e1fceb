#include "launcher/options/help_text.h"

#include <sstream>
#include <string_view>

#include "ddp/base/version.h"

namespace launcher {
namespace {

/// A name and its meaning.
struct Meaning {
  const char* name;
  const char* text;
};

/// ddprun's exit codes; error.h defines the constants.
constexpr Meaning kExitCodes[] = {
    {"0", "All workers ended with 0."},
    {"1",
     "ddprun could not do its part: hosts did not meet, a file could not be "
     "written, output was lost. With --doctor: this machine is not fit."},
    {"2",
     "The command line, or a variable that stands for an option, is wrong."},
    {"126, 127", "PROGRAM cannot be executed; it is not there."},
    {"128 + N", "Signal N ended the worker that failed first, or the job."},
    {"the code of --preempt-code",
     "All workers ended with 0 after the signal of --on-preempt."},
    {"any other", "That of the worker that failed first."}};

/// Variables without an option. Workers also get torchrun's variables.
constexpr Meaning kVariables[] = {
    {"LOGLEVEL",
     "Least of ddprun's own messages: INFO, WARNING, ERROR [WARNING]."},
    {"PYTHON_EXEC", "The Python of programs that end in .py."},
    {"TMPDIR", "Where files of a job lie that has no --log-dir [/tmp]."},
    {"DDPRUN_TOKEN", "A secret that all hosts of a job must know."},
    {"DDPRUN_JOB_DIR",
     "For workers under --hang-timeout and --on-preempt: the folder of the "
     "files progress_$RANK, to report progress to, and stop_$RANK, which tells "
     "a worker that has made it to save and to end."}};

/// Escapes text for roff: no command at the start of a line, "-" as a minus
/// sign.
std::string plain(std::string_view text) {
  std::string roff;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) {
      roff += "\\&";
    }
    roff += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    begins_line = c == '\n';
  }
  return roff;
}

/// Joins the lines that were wrapped for a terminal.
std::string flowing(std::string text) {
  for (char& c : text) {
    c = c == '\n' ? ' ' : c;
  }
  return plain(text);
}

void add_option(std::ostream& page, const OptionText& option) {
  page << ".TP\n\\fB" << plain(option.names) << "\\fR";
  if (!option.type.empty()) {
    page << " \\fI" << plain(option.type) << "\\fR";
  }
  page << "\n" << flowing(option.help) << "\n";
}

template <size_t count>
void add_meanings(std::ostream& page,
                  const char* title,
                  const Meaning (&meanings)[count]) {
  page << ".SH " << title << "\n";
  for (const Meaning& meaning : meanings) {
    page << ".TP\n\\fB" << plain(meaning.name) << "\\fR\n"
         << flowing(meaning.text) << "\n";
  }
}

}  // namespace

std::string man_page(const std::vector<OptionGroup>& groups) {
  std::ostringstream page;
  page << ".TH DDPRUN 1 \"\" \"ddprun " DDP_VERSION_TEXT "\"\n"
       << ".SH NAME\nddprun \\- start the ranks of a distributed training\n"
       << ".SH SYNOPSIS\n.B ddprun\n[OPTIONS] PROGRAM [ARGUMENTS OF "
          "PROGRAM...]\n"
       << ".SH DESCRIPTION\n"
       << flowing(kDescription) << "\n.SH OPTIONS\n"
       << flowing(kFooter) << "\n";
  for (const OptionGroup& group : groups) {
    page << ".SS " << plain(group.title) << "\n";
    for (const OptionText& option : group.options) {
      add_option(page, option);
    }
  }
  add_meanings(page, "EXIT STATUS", kExitCodes);
  add_meanings(page, "ENVIRONMENT", kVariables);
  page << ".SH EXAMPLES\n.nf\n" << plain(kExamples) << ".fi\n";
  return page.str();
}

}  // namespace launcher
