#include "ddp/reduce/detail/pass_report.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "ddp/base/text/rank_text.h"
#include "ddp/base/text/record.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

/// A field that explains why a pass has failed if a rank has it, and the text
/// around the ranks and their values.
struct Explanation {
  std::string PassReport::*field;
  const char* before;
  const char* after;
};

// The most severe one first.
const Explanation kExplanations[] = {
    {&PassReport::failure,
     "Expected every rank to finish its backward passes, but an exception left "
     "one",
     " the ranks are no longer in step: start again from a checkpoint, or make "
     "a new DistributedDataParallel on every rank"},
    {&PassReport::changed,
     "Expected each gradient to come as often as in the first backward pass, "
     "which static_graph(true) promises, but these came",
     " let every pass use the same parameters in the same way, or leave out "
     "static_graph"},
    {&PassReport::late,
     "Expected no gradient for parameters that the graph of the backward pass "
     "does not reach, and that had none in passes before, but these came in a "
     "backward pass inside it",
     " use ddp::checkpoint_activations, or find_unused_on_demand(true), which "
     "waits for the end of the pass"},
    {&PassReport::missing,
     "Expected every parameter to get a gradient in this backward pass, but "
     "these got none:",
     " let them take part in the loss, freeze them with requires_grad_(false) "
     "from the forward to the end of backward(), or set "
     "find_unused_on_demand(true), or find_unused_parameters(true) where most "
     "passes leave some out, or static_graph(true) where every pass leaves out "
     "the same"},
};

/// A field of all ranks, by ranks; "" if it is "" on all of them.
std::string by_rank(const std::vector<PassReport>& reports,
                    std::string PassReport::*field) {
  std::vector<std::string> texts;
  texts.reserve(reports.size());
  for (const auto& report : reports) {
    texts.push_back(report.*field);
  }
  return names_by_rank(texts);
}

bool is_known(const PassReport& report) {
  return report.number > 0;
}

/// "rank 0: ..., rank 1: ..." of the known reports.
std::string describe_each(
    const std::vector<PassReport>& reports,
    const std::function<std::string(const PassReport&)>& describe) {
  constexpr size_t kShown = 16;
  std::ostringstream all;
  const char* separator = "";
  for (size_t rank = 0; rank < std::min(reports.size(), kShown); ++rank) {
    if (is_known(reports[rank])) {
      all << separator << "rank " << rank << ": " << describe(reports[rank]);
      separator = ", ";
    }
  }
  if (reports.size() > kShown) {
    all << " and " << reports.size() - kShown << " more";
  }
  return all.str();
}

bool freeze_alike(const std::vector<PassReport>& reports) {
  const auto first = std::find_if(reports.begin(), reports.end(), is_known);
  return std::all_of(first, reports.end(), [&](const PassReport& report) {
    return !is_known(report) || report.frozen == first->frozen;
  });
}

}  // namespace

std::string to_text(const PassReport& report) {
  return join_fields({std::to_string(report.number),
                      std::to_string(report.without_step),
                      report.missing,
                      report.frozen,
                      report.changed,
                      report.late,
                      report.failure});
}

PassReport parse_report(const std::string& text) {
  const auto fields = fields_of(text);
  PassReport report;
  report.number = std::stoll(fields.at(0));
  report.without_step = std::stoll(fields.at(1));
  report.missing = fields.at(2);
  report.frozen = fields.at(3);
  report.changed = fields.at(4);
  report.late = fields.at(5);
  report.failure = fields.at(6);
  return report;
}

std::string pass_error(const std::vector<PassReport>& reports) {
  for (const auto& [field, before, after] : kExplanations) {
    if (const auto ranks = by_rank(reports, field); !ranks.empty()) {
      return before + ranks + after;
    }
  }
  if (!freeze_alike(reports)) {
    return "Expected all ranks to train the same parameters, but these are "
           "frozen: " +
           describe_each(reports,
                         [](const PassReport& report) {
                           return report.frozen.empty() ? "none"
                                                        : report.frozen;
                         }) +
           ". Change requires_grad on all ranks before the same forward";
  }
  return "Expected all ranks to step alike, but their parameters have "
         "changed " +
         describe_each(
             reports,
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

std::string failure_error(int rank, const std::string& failure) {
  std::vector<PassReport> reports(rank + 1);
  reports.back().failure = failure;
  return pass_error(reports);
}

std::string crossed_error() {
  return "Expected a backward pass to meet those of the same model on the "
         "other ranks, but another model's, or a collective of the program, "
         "met it in the group, so that gradients were mixed. Make the passes "
         "of all models in one order on all ranks, give each thread a group "
         "of its own (ddp::new_group), and start again from a checkpoint";
}

std::string disagreement_error(const std::string& when,
                               const std::string& departure) {
  return "Expected all ranks to agree on a backward pass before " + when +
         ", but one of them missed a gradient there, threw an exception or "
         "trains other parameters" +
         departure +
         ". The gradients of that pass were incomplete: start again from a "
         "checkpoint";
}

std::string unfinished_error(const std::string& departure) {
  return "Expected the last backward pass to have ended on the GPU before "
         "ddp::destroy_process_group(), but another rank " +
         (departure.empty() ? "has not come in time" : "is gone" + departure) +
         ". The gradients of that pass are incomplete: start again from a "
         "checkpoint";
}

}  // namespace ddp::detail
