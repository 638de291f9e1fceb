#include "launcher/options/output_options.h"

#include "ddp/base/cluster/env_integer.h"
#include "launcher/base/error.h"
#include "launcher/options/setters.h"

namespace launcher {

void bind_output(CommandLine& line, LaunchOptions& options) {
  line.group("Output and logs");
  line.value("output",
             one_of(output_names()),
             "lines: each whole, with a prefix; pty: the same, but workers see "
             "a terminal of ddprun's size, less the prefix, and write line by "
             "line; inherit: ddprun's own stdout and stderr, as for a debugger "
             "[pty for lines that go to a terminal alone, else lines]",
             into(options.output, parse_output));
  line.value("stdin",
             "RANK|none",
             "Local rank that has ddprun's stdin; the others have /dev/null, "
             "and all behind a shell's & [0]",
             [&options](const std::string& text) {
               options.stdin_rank =
                   text == "none" ? std::nullopt
                                  : std::optional(parse_integer(
                                        text, 0, ddp::detail::kMostRanks));
             });
  line.value("log-dir",
             "DIR",
             "Folder for <run id>_<random>/attempt_<n>/<local rank>/"
             "{stdout.log,stderr.log,error.json}, readable as umask says",
             into(options.log_dir, as_text));
  line.value("redirects",
             "MAP",
             "Streams that go to files instead of here: 0 none, 1 stdout, 2 "
             "stderr, 3 both; or a map 0:3,1:0 [0]",
             into(options.redirects, parse_stream_map),
             "r");
  line.value("tee",
             "MAP",
             "Streams that go to files and here [0]",
             into(options.tee, parse_stream_map),
             "t");
  line.value("local-ranks-filter",
             "RANK,...",
             "Shows the output of these local ranks only; files have all",
             [&options](const std::string& text) {
               options.shown_ranks = text.empty()
                                         ? std::nullopt
                                         : std::optional(parse_ranks(text));
             });
  line.value("duplicate-stdout-filters",
             "TEXT,...",
             "Copies the lines of --tee that hold one of the texts to "
             "attempt_<n>/filtered_stdout.log; ,, is a comma in a text",
             into(options.out_filters, parse_texts));
  line.value("duplicate-stderr-filters",
             "TEXT,...",
             "The same for stderr and filtered_stderr.log",
             into(options.err_filters, parse_texts));
  line.value("report-json",
             "FILE",
             "Keeps what the job does and how its attempts and workers ended "
             "in FILE, for programs; replaced as a whole",
             into(options.report_json, as_text));
  const std::vector<std::string> handlers{
      "null", "console", "dynamic_rendezvous"};
  line.value(
      "event-log-handler",
      one_of(handlers),
      "Accepted and ignored: --report-json tells more",
      [handlers](const std::string& text) { parse_choice(text, handlers); });
}

void check_output(const LaunchOptions& options) {
  if (options.output == Output::inherit && !options.tee.empty()) {
    throw UsageError(
        "--tee: expected to be without --output=inherit, by which ddprun does "
        "not see what workers write, but got both; leave one out, or give "
        "--output=pty");
  }
}

}  // namespace launcher
