#include <algorithm>
#include <set>
#include <sstream>

#include "test/ddp/random_programs/program.h"

namespace ddp::test {
namespace {

using Words = std::vector<const char*>;

const Words kParts{"plain",
                   "branch",
                   "tied",
                   "product",
                   "matrix",
                   "rows",
                   "norm",
                   "frozen",
                   "ignored",
                   "silent"};
const Words kMemories{"", " checkpointed", " checkpointed twice"};
const Words kUnused{"refused", "found", "fixed"};
const Words kSteppers{"sgd",
                      "momentum",
                      "fused momentum",
                      "sharded momentum",
                      "adam",
                      "fused adam",
                      "sharded adam"};
const Words kBuffers{"own", "broadcast", "averaged"};
const Words kActs{"wrap",
                  "regroup",
                  "train",
                  "pair",
                  "gather",
                  "evaluate",
                  "step",
                  "freeze",
                  "load",
                  "replace",
                  "convert",
                  "preset",
                  "join",
                  "outrun",
                  "leave",
                  "miss",
                  "fail"};
const Words kLocalFailures{
    "no", "in the forward", "in the backward", "no backward", "an inspection"};
const Words kZeros{"kept", "none", "zero"};
const Words kFiles{"module", "wrapper", "submodule", "checkpoint"};

template <class Kind>
const char* word(const Words& words, Kind kind) {
  return words.at(static_cast<size_t>(kind));
}

std::ostream& operator<<(std::ostream& stream,
                         const std::optional<torch::Dtype>& dtype) {
  return dtype ? stream << *dtype : stream << "as it is";
}

const char* exchange_of(const Program& program) {
  return program.way == nullptr ? "default" : program.way->name;
}

template <class Number>
void list(std::ostream& text,
          const char* name,
          const std::vector<Number>& numbers) {
  if (!numbers.empty()) {
    text << ", " << name;
    for (const auto& number : numbers) {
      text << " " << number;
    }
  }
}

void describe_wrap(std::ostream& text, const Act& act) {
  text << ", buckets of " << act.first_cap_mb << ", then " << act.bucket_cap_mb
       << " MiB" << (act.keeps_memory ? ", gradients as views" : "")
       << (act.syncs ? "" : ", without init_sync");
}

void describe_train(std::ostream& text, const Act& act) {
  text << ", " << act.forwards << " forwards"
       << (act.is_apart() ? " with a backward each" : "");
  if (act.repeats > 1) {
    text << ", each graph " << act.repeats << " times";
  }
  if (act.in_threads) {
    text << " in a thread, backward in another";
  }
  if (act.local_failure != Act::LocalFailure::none) {
    text << ", local failure of rank " << act.rank << ": "
         << word(kLocalFailures, act.local_failure);
  }
  if (act.is_infinite) {
    text << ", inf on rank " << act.rank << " part " << act.part;
  }
}

void describe_join(std::ostream& text, const Act& act) {
  text << ", a step for " << act.forwards << " inputs, divided by "
       << (act.by_live() ? "ranks with inputs" : "all")
       << (act.steps_joined() ? ", all step" : ", ranks with inputs step")
       << ", gradients become " << word(kZeros, act.zero);
}

void add_kinds(std::set<std::string>& kinds, const Act& act) {
  const auto kind = std::string(word(kActs, act.kind)) + " ";
  kinds.insert(kind);
  kinds.insert(kind + word(kLocalFailures, act.local_failure) + " failure");
  kinds.insert(kind + "to " + word(kZeros, act.zero));
  kinds.insert(kind + (act.flag ? "so" : "else"));
  if (act.is_infinite) {
    kinds.insert(kind + "inf");
  }
  if (act.repeats > 1) {
    kinds.insert(kind + "again");
  }
  if (act.clip > 0) {
    kinds.insert(kind + "clip");
  }
  if (!act.syncs) {
    kinds.insert(kind + "without init_sync");
  }
  if (act.keeps_memory) {
    kinds.insert(kind + "as views");
  }
}

bool is_change(Act::Kind kind) {
  return kind == Act::Kind::load || kind == Act::Kind::replace ||
         kind == Act::Kind::convert || kind == Act::Kind::preset;
}

std::string change_of(const Act& act) {
  std::string change = word(kActs, act.kind);
  if (act.kind == Act::Kind::load) {
    change += std::string(" ") + word(kFiles, act.file);
  } else if (act.kind == Act::Kind::replace) {
    change += act.on_all() ? " on all ranks" : " on one rank";
  }
  return change;
}

/// Returns whether the first model trains often enough for effects that need
/// several steps.
bool is_long(const Program& program) {
  const auto trains = std::count_if(
      program.acts.begin(), program.acts.end(), [](const Act& act) {
        return act.kind == Act::Kind::train && act.model == 0;
      });
  return trains >= (program.scales ? 5 : 2);
}

}  // namespace

std::set<std::string> changes_of(const Program& program) {
  std::set<std::string> changes;
  if (program.shards_model) {
    changes.insert(program.gathers_shards ? "gathered model" : "sharded model");
  }
  std::set<std::pair<int, int>> trained;
  for (const auto& act : program.acts) {
    if (is_change(act.kind)) {
      changes.insert(change_of(act));
    }
    if (act.in_threads) {
      changes.insert("train in threads");
    }
    if (act.kind == Act::Kind::wrap && act.wrapper == 1) {
      changes.insert("second wrapper");
    }
    if (act.kind == Act::Kind::train) {
      trained.emplace(act.model, act.wrapper);
    }
  }
  for (int model = 0; model < program.models; ++model) {
    if (trained.count({model, 0}) > 0 && trained.count({model, 1}) > 0) {
      changes.insert("both wrappers train");
    }
  }
  return changes;
}

std::set<std::string> kinds_of(const Program& program) {
  if (program.shards_model) {
    auto plain = program;
    plain.shards_model = plain.gathers_shards = false;
    std::set<std::string> kinds;
    for (const auto& kind : kinds_of(plain)) {
      kinds.insert(
          (program.gathers_shards ? "gathered model, " : "sharded model, ") +
          kind);
    }
    return kinds;
  }
  // One rank exchanges nothing.
  const bool is_plain =
      program.only_matrices() && !program.has(Part::Kind::matrix);
  if (program.size == 1 || !is_long(program) || is_plain) {
    return {std::to_string(program.size) + " ranks"};
  }
  const auto& precision = program.precision;
  auto kinds = changes_of(program);
  kinds.merge(std::set<std::string>{
      std::string("unused ") + word(kUnused, program.unused),
      std::string("exchange ") + exchange_of(program),
      std::string("stepper ") + word(kSteppers, program.stepper),
      std::string("buffers ") + word(kBuffers, program.buffers),
      std::string(program.scales ? "scaled" : "not scaled"),
      std::string(precision.reduce_dtype() ? "sent as" : "sent"),
      std::string(precision.buffer_dtype() ? "cast buffers" : "buffers"),
      std::to_string(program.size) + " ranks",
      std::to_string(program.models) + " models"});
  if (program.scales && program.only_matrices()) {
    kinds.insert("scaled, only matrices");
  }
  for (const auto& part : program.parts) {
    kinds.insert(std::string("part ") + word(kParts, part.kind));
    kinds.insert(std::string("memory") + word(kMemories, part.memory));
  }
  for (const auto& act : program.acts) {
    add_kinds(kinds, act);
  }
  return kinds;
}

std::string describe(const Program& program) {
  std::ostringstream text;
  const auto& precision = program.precision;
  text << "seed " << program.seed << ": " << program.size << " ranks, "
       << program.models << (program.shards_model ? " sharded" : "")
       << (program.gathers_shards ? " gathered" : "") << " models, unused "
       << word(kUnused, program.unused) << ", exchange " << exchange_of(program)
       << ", stepper " << word(kSteppers, program.stepper) << ", buffers "
       << word(kBuffers, program.buffers) << (program.scales ? ", scaled" : "")
       << ", sends " << precision.reduce_dtype() << ", buffers "
       << precision.buffer_dtype() << "\n  parts";
  for (const auto& part : program.parts) {
    text << " (" << word(kParts, part.kind) << " " << part.dtype << " "
         << part.size << word(kMemories, part.memory) << ")";
  }
  for (size_t i = 0; i < program.acts.size(); ++i) {
    text << "\n  " << i << " " << describe(program.acts[i]);
  }
  return text.str();
}

std::string describe(const Act& act) {
  std::ostringstream text;
  text << word(kActs, act.kind) << " model " << act.model
       << (act.wrapper == 1 ? ", second wrapper" : "");
  switch (act.kind) {
    case Act::Kind::wrap:
      describe_wrap(text, act);
      break;
    case Act::Kind::train:
    case Act::Kind::pair:
      describe_train(text, act);
      break;
    case Act::Kind::gather:
      text << (act.by_module() ? ", by the module" : ", by the wrapper");
      break;
    case Act::Kind::evaluate:
      text << (act.in_training() ? ", as in training" : "");
      break;
    case Act::Kind::step:
      text << ", clip " << act.clip << ", gradients become "
           << word(kZeros, act.zero) << (act.holds() ? ", held" : "");
      break;
    case Act::Kind::join:
      describe_join(text, act);
      break;
    case Act::Kind::freeze:
      text << ", part " << act.part;
      break;
    case Act::Kind::load:
      text << ", " << word(kFiles, act.file);
      if (act.file == File::submodule) {
        text << " " << act.part;
      } else if (act.file == File::checkpoint) {
        text << (act.by_wrapper() ? " of the wrapper" : " of the module");
      }
      break;
    case Act::Kind::replace:
      text << ", rank " << (act.on_all() ? "all" : std::to_string(act.rank));
      break;
    case Act::Kind::preset:
      text << (act.is_dense() ? ", dense" : "");
      break;
    case Act::Kind::miss:
      text << ", rank " << act.rank << " part " << act.part;
      break;
    case Act::Kind::fail:
      text << ", rank " << act.rank;
      break;
    case Act::Kind::regroup:
    case Act::Kind::convert:
    case Act::Kind::outrun:
    case Act::Kind::leave:
      break;
  }
  list(text, "counts", act.counts);
  return text.str();
}

}  // namespace ddp::test
