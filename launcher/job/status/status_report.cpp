#include "launcher/job/status/status_report.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launcher/base/error.h"
#include "launcher/base/one_line.h"
#include "launcher/job/status/status_json.h"
#include "launcher/job/status/status_text.h"

namespace launcher {
namespace {

using ListJson = nlohmann::ordered_json;

std::string notes_on(const StatusAnswers& answers) {
  std::string text;
  for (const StatusAnswers::Silent& silent : answers.silent) {
    text += on_one_line(
                (silent.pid != 0 ? "process " + std::to_string(silent.pid)
                                 : silent.file) +
                " does not tell its status: it was stopped, the kernel holds "
                "it, or the disk of " +
                silent.file + " is full") +
            "\n";
  }
  for (const std::string& file : answers.stale) {
    text += on_one_line("a ddprun that was killed has left " +
                        std::filesystem::path(file).parent_path().string() +
                        "; it can be removed") +
            "\n";
  }
  return text;
}

std::string json_of(const StatusAnswers& answers) {
  ListJson silent = ListJson::array();
  for (const StatusAnswers::Silent& entry : answers.silent) {
    silent.push_back(
        {{"file", entry.file},
         {"pid", entry.pid != 0 ? ListJson(entry.pid) : ListJson()}});
  }
  ListJson jobs = ListJson::array();
  for (const JobStatus& status : answers.jobs) {
    jobs.push_back(ListJson::parse(status_json(status)));
  }
  const ListJson all{{"jobs", std::move(jobs)},
                     {"silent", std::move(silent)},
                     {"stale", answers.stale}};
  return all.dump(2, ' ', false, ListJson::error_handler_t::replace) + "\n";
}

}  // namespace

bool is_asked_for(const JobStatus& status, const std::string& job) {
  return job.empty() || status.job == job ||
         std::to_string(status.pid) == job ||
         std::to_string(status.supervisor) == job;
}

std::string status_report(const StatusAnswers& answers,
                          const StatusOptions& options) {
  StatusAnswers chosen = answers;
  std::erase_if(chosen.jobs, [&](const JobStatus& status) {
    return !is_asked_for(status, options.job);
  });
  if (!options.job.empty()) {
    if (chosen.jobs.empty()) {
      throw LaunchError(
          kExitFailure,
          on_one_line("no job \"" + options.job +
                      "\" of yours runs on this machine; `ddprun --status` "
                      "lists those that do") +
              (answers.silent.empty()
                   ? ""
                   : " (" + std::to_string(answers.silent.size()) +
                         " did not)"));
    }
    chosen.silent.clear();
    chosen.stale.clear();
  }
  std::sort(chosen.jobs.begin(),
            chosen.jobs.end(),
            [](const JobStatus& left, const JobStatus& right) {
              return std::pair(left.uptime, left.pid) >
                     std::pair(right.uptime, right.pid);
            });
  if (options.as_json) {
    return json_of(chosen);
  }
  std::string text;
  for (const JobStatus& status : chosen.jobs) {
    text += (text.empty() ? "" : "\n") + status_text(status);
  }
  const std::string notes = notes_on(chosen);
  return (text.empty() ? "no job of yours runs on this machine\n" : text) +
         notes;
}

}  // namespace launcher
