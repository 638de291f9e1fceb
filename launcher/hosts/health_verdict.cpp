#include "launcher/hosts/health_verdict.h"

#include "launcher/base/last_lines.h"
#include "launcher/base/line_splitter.h"
#include "launcher/base/one_line.h"
#include "launcher/base/patience_text.h"

namespace launcher {
namespace {

std::vector<std::string> last_lines_of(const std::string& output) {
  LineSplitter splitter(LineSplitter::Returns::in_text);
  LastLines lines;
  const auto add = [&lines](std::string_view line, LineEnd) {
    lines.add(line);
  };
  splitter.feed(output, add);
  splitter.finish(add);
  return lines.get();
}

}  // namespace

HealthVerdict judge_health(const HealthCheck& check,
                           const std::optional<CommandEnd>& end,
                           const std::string& host) {
  if (end && end->status && end->status->is_success()) {
    return {};
  }
  HealthVerdict verdict;
  for (const std::string& line :
       end ? last_lines_of(end->output) : std::vector<std::string>()) {
    verdict.notes.push_back("--health-check: " + on_one_line(line));
  }
  const std::string why = !end ? "could not be run; check ulimit -a"
                          : end->status
                              ? "failed (" + end->status->text() + ")"
                              : "did not end in " + patience_text(check.limit) +
                                    " (--health-check-timeout)";
  verdict.failure =
      "host " + host + " does not take part: its --health-check " + why;
  return verdict;
}

}  // namespace launcher
