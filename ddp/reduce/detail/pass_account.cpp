#include "ddp/reduce/detail/pass_account.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include <c10/util/hash.h>

#include "ddp/base/text/rank_text.h"

namespace ddp::detail {
namespace {

uint16_t hash_of(const std::vector<size_t>& indices) {
  size_t hash = 0;
  for (const size_t index : indices) {
    hash = c10::hash_combine(hash, index + 1);
  }
  // The high bits of a product depend on all bits of its factors.
  return static_cast<uint16_t>((uint64_t{hash} * 0x9e3779b97f4a7c15) >> 48);
}

/// What `text` says of each rank, by ranks; "" when it is "" of all.
std::string who_says(const std::vector<PassReport>& reports,
                     std::string PassReport::*text) {
  std::vector<std::string> texts;
  texts.reserve(reports.size());
  for (const auto& report : reports) {
    texts.push_back(report.*text);
  }
  return names_by_rank(texts);
}

bool knows(const PassReport& report) {
  return report.number > 0;
}

std::string each(const std::vector<PassReport>& reports,
                 const std::function<std::string(const PassReport&)>& text) {
  constexpr size_t kShown = 16;
  std::ostringstream all;
  const char* separator = "";
  for (size_t rank = 0; rank < std::min(reports.size(), kShown); ++rank) {
    if (knows(reports[rank])) {
      all << separator << "rank " << rank << ": " << text(reports[rank]);
      separator = ", ";
    }
  }
  if (reports.size() > kShown) {
    all << " and " << reports.size() - kShown << " more";
  }
  return all.str();
}

bool differ(const std::vector<PassReport>& reports,
            const std::function<bool(const PassReport&, const PassReport&)>&
                are_equal) {
  const auto first = std::find_if(reports.begin(), reports.end(), knows);
  return std::any_of(first, reports.end(), [&](const PassReport& report) {
    return knows(report) && !are_equal(report, *first);
  });
}

void add_to_list(std::string& list, const std::string& text) {
  list += (list.empty() ? "" : ", ") + text;
}

}  // namespace

void PassAccount::note_changed(const std::string& name_and_how_often) {
  add_to_list(changed, name_and_how_often);
}

void PassAccount::note_late(const std::string& name) {
  add_to_list(late, name);
}

void PassAccount::reset() {
  missing.clear();
  changed.clear();
  late.clear();
  is_shadow = false;
}

/// One bit for the steps: ranks that part, part by one first.
Stamp PassAccount::stamp() const {
  const auto last_bits = static_cast<uint8_t>(reducer & 0xf);
  if (is_shadow) {
    return {0, false, false, last_bits};
  }
  const int64_t steps = without_step.value_or(0) & 1;
  return {static_cast<uint16_t>((hash_of(frozen) << 1) | steps),
          without_step.has_value(),
          true,
          last_bits};
}

std::string to_text(const PassReport& report) {
  std::ostringstream text;
  text << report.number << "\n"
       << report.without_step << "\n"
       << report.missing << "\n"
       << report.frozen << "\n"
       << report.changed << "\n"
       << report.late << "\n"
       << report.failure << "\n";
  return text.str();
}

PassReport report_of(const std::string& text) {
  std::istringstream lines(text);
  PassReport report;
  lines >> report.number >> report.without_step;
  lines.ignore();
  std::getline(lines, report.missing);
  std::getline(lines, report.frozen);
  std::getline(lines, report.changed);
  std::getline(lines, report.late);
  std::getline(lines, report.failure);
  return report;
}

std::vector<PassReport> failure_on(int rank, int ranks, std::string failure) {
  std::vector<PassReport> reports(ranks);
  reports[rank].failure = std::move(failure);
  return reports;
}

std::string crossed_error() {
  return "Expected a backward pass to meet those of the same model on the "
         "other ranks, but another model's, or a collective of the program, "
         "met it in the group, so that gradients were mixed. Make the passes "
         "of all models in one order on all ranks, give each thread a group "
         "of its own (ddp::new_group), and start again from a checkpoint";
}

std::string pass_error(const std::vector<PassReport>& reports) {
  if (const auto who = who_says(reports, &PassReport::failure); !who.empty()) {
    return "Expected every rank to finish its backward passes, but an "
           "exception left one" +
           who +
           " the ranks are no longer in step: start again from a checkpoint, "
           "or make a new DistributedDataParallel on every rank";
  }
  if (const auto who = who_says(reports, &PassReport::changed); !who.empty()) {
    return "Expected each gradient to come as often as in the first backward "
           "pass, which static_graph(true) promises, but these came" +
           who +
           " let every pass use the same parameters in the same way, or leave "
           "out static_graph";
  }
  if (const auto who = who_says(reports, &PassReport::late); !who.empty()) {
    return "Expected no gradient for parameters that the graph of the backward "
           "pass does not reach, and that had none in passes before, but these "
           "came in a backward pass inside it" +
           who +
           " use ddp::checkpoint_activations, or find_unused_on_demand(true), "
           "which waits for the end of the pass";
  }
  if (const auto who = who_says(reports, &PassReport::missing); !who.empty()) {
    return "Expected every parameter to get a gradient in this backward pass, "
           "but these got none:" +
           who +
           " let them take part in the loss, freeze them with "
           "requires_grad_(false) from the forward to the end of backward(), "
           "or set find_unused_on_demand(true), or "
           "find_unused_parameters(true) "
           "where most passes leave some out, or static_graph(true) where "
           "every "
           "pass leaves out the same";
  }
  if (differ(reports, [](const PassReport& a, const PassReport& b) {
        return a.frozen == b.frozen;
      })) {
    return "Expected all ranks to train the same parameters, but these are "
           "frozen: " +
           each(reports,
                [](const PassReport& report) {
                  return report.frozen.empty() ? "none" : report.frozen;
                }) +
           ". Change requires_grad on all ranks before the same forward";
  }
  return "Expected all ranks to step alike, but their parameters have "
         "changed " +
         each(reports,
              [](const PassReport& report) {
                return std::to_string(report.number - 1 - report.without_step) +
                       " times between " + std::to_string(report.number) +
                       " backward passes";
              }) +
         ". A rank has made a backward pass more, which was averaged with "
         "another step of the others, or has left out a step of the optimizer. "
         "Make passes of one rank alone on module() or under a NoSyncGuard, "
         "and start again from a checkpoint";
}

}  // namespace ddp::detail
