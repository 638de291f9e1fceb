#include "dp/servers/detail/resume_points.h"

#include <algorithm>
#include <random>
#include <sstream>

#include "ddp/base/text/record.h"
#include "ddp/job/text_collectives.h"
#include "dp/servers/detail/topology.h"

namespace dp::detail {
namespace {

bool has(const ResumePoints& saved, int64_t update) {
  return std::find(saved.updates.begin(), saved.updates.end(), update) !=
         saved.updates.end();
}

std::string all_saved(const std::vector<ResumePoints>& servers) {
  std::ostringstream text;
  for (size_t server = 0; server < servers.size(); ++server) {
    text << (server == 0 ? "" : ", ") << server_name(static_cast<int>(server))
         << " has";
    for (const int64_t update : servers[server].updates) {
      text << ' ' << update;
    }
    text << (servers[server].updates.empty() ? " none" : "");
  }
  return text.str();
}

}  // namespace

int64_t new_run() {
  std::random_device random;
  const auto high = static_cast<uint64_t>(random()) << 32U;
  // Shifted by one bit, so that the number is not negative.
  return static_cast<int64_t>((high | random()) >> 1U);
}

std::string to_text(const ResumePoints& saved) {
  std::vector<std::string> fields{saved.problem, std::to_string(saved.run)};
  for (const int64_t update : saved.updates) {
    fields.push_back(std::to_string(update));
  }
  return ddp::detail::join_fields(fields);
}

ResumePoints resume_points_of_text(const std::string& text) {
  const auto fields = ddp::detail::fields_of(text);
  ResumePoints saved;
  saved.problem = fields.at(0);
  saved.run = std::stoll(fields.at(1));
  for (size_t i = 2; i < fields.size(); ++i) {
    saved.updates.push_back(std::stoll(fields[i]));
  }
  return saved;
}

ResumePlan plan_resume(const std::vector<ResumePoints>& servers,
                       UpdateMode mode) {
  for (size_t server = 0; server < servers.size(); ++server) {
    if (!servers[server].problem.empty()) {
      return {{},
              server_name(static_cast<int>(server)) +
                  " cannot go on: " + servers[server].problem};
    }
  }
  const auto is_new = [](const ResumePoints& saved) {
    return saved.updates.empty();
  };
  ResumePlan plan;
  plan.run = servers.front().run;
  if (std::all_of(servers.begin(), servers.end(), is_new)) {
    return plan;
  }
  const bool are_known = std::none_of(servers.begin(), servers.end(), is_new);
  const bool are_of_one_run =
      std::all_of(servers.begin(), servers.end(), [&](const auto& saved) {
        return saved.run == plan.run;
      });
  if (are_known && !are_of_one_run) {
    plan.problem =
        "Expected the files of one training, but " + all_saved(servers) +
        " of another one: a training that began afresh with the same "
        "checkpoint() ended before all servers had written their files; give "
        "each server a file of one training, or remove them all";
    return plan;
  }
  if (are_known && mode == UpdateMode::asynchronous) {
    for (const auto& saved : servers) {
      plan.updates.push_back(saved.updates.front());
    }
    return plan;
  }
  for (const int64_t update : servers.front().updates) {
    if (std::all_of(servers.begin(), servers.end(), [&](const auto& saved) {
          return has(saved, update);
        })) {
      plan.updates.assign(servers.size(), update);
      return plan;
    }
  }
  plan.problem =
      "Expected an update after which all servers have saved their parameters, "
      "but " +
      all_saved(servers) + "; give each the files that it wrote";
  return plan;
}

}  // namespace dp::detail
