#include "launcher/cli/option_help.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

namespace launcher {
namespace {

constexpr const char* kDescription =
    "Starts one worker process per GPU or CPU slot of this host and gives each "
    "its rank.\nA worker's whole lines appear with [rank] before them. When "
    "one "
    "fails, the others are stopped\nand ddprun ends with its exit code, or 128 "
    "+ the signal that ended it.";

constexpr const char* kUsage =
    "\nUsage:\n  ddprun [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM...]\n"
    "  ddprun --nproc-per-node=4 ./train --epochs 3\n"
    "  ddprun --gpus 0,2 ./train\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr host0 ./train   "
    "(and --node-rank 1 on the other)\n";

constexpr const char* kFooter =
    "Every option may be spelt with _ for -, and takes its default from the "
    "environment:\nPET_NPROC_PER_NODE=4 stands for --nproc-per-node=4. "
    "LOGLEVEL "
    "(INFO, WARNING, ERROR)\nchooses ddprun's own messages, PYTHON_EXEC the "
    "Python of programs that end in .py.";

/// One spelling of each option and lines of 80 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_usage(const CLI::App*, std::string) const override {
    return kUsage;
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

}  // namespace

void set_help(CLI::App& app) {
  app.name("ddprun");
  app.description(kDescription);
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Prints this and ends");
  app.set_version_flag(
      "--version", "ddprun " DDP_VERSION, "Prints the version and ends");
}

}  // namespace launcher
