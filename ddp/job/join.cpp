#include "ddp/job/join.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/ScopeExit.h>

#include "ddp/base/job_files/stop_file.h"
#include "ddp/base/text/rank_text.h"
#include "ddp/job/preemption.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp {
namespace {

/// Announcement of a rank without inputs.
constexpr int kJoined = 0;

/// Joins of this thread that let ranks continue without inputs.
thread_local std::vector<Join*> running_joins;

using Joinables = std::vector<std::reference_wrapper<Joinable>>;

/// Returns the first joinable that has a group, or null.
const Joinable* first_with_group(const Joinables& joinables) {
  const auto found = std::find_if(
      joinables.begin(), joinables.end(), [](const Joinable& joinable) {
        return joinable.join_group() != nullptr;
      });
  return found == joinables.end() ? nullptr : &found->get();
}

/// Returns the reason why this rank cannot join, or "".
std::string refusal_of(const Joinables& joinables, const JoinOptions& options) {
  const Joinable& first = *first_with_group(joinables);
  for (const Joinable& joinable : joinables) {
    const auto group = joinable.join_group();
    if (group && group != first.join_group()) {
      return joinable.join_name() + " with another group than " +
             first.join_name();
    }
    const auto refusal = joinable.refuses_join();
    if (!options.throw_on_early_termination() && !refusal.empty()) {
      return joinable.join_name() + " that " + refusal;
    }
  }
  return "";
}

/// Returns the text that must be equal on all ranks.
std::string describe_join(const Joinables& joinables,
                          const JoinOptions& options) {
  std::string text;
  for (const Joinable& joinable : joinables) {
    text += (text.empty() ? "" : " and ") + joinable.join_name();
  }
  if (options.throw_on_early_termination()) {
    text += " that throw on early termination";
  }
  return text + (options.divide_by_initial_world_size()
                     ? " divided by all ranks"
                     : " divided by those with inputs");
}

}  // namespace

Join::Join(Joinables joinables, const JoinOptions& options)
    : joinables_(std::move(joinables)), options_(options) {
  TORCH_CHECK(!joinables_.empty(),
              "Expected Join to get at least one model or optimizer, but got "
              "none");
  if (const auto* first = first_with_group(joinables_)) {
    group_ = first->join_group();
  }
  if (!options.enable() || !group_ || group_->getSize() == 1) {
    group_.reset();
    return;
  }
  last_live_ = group_->getSize() - 1;
  verify();
  for (Joinable& joinable : joinables_) {
    joinable.join_ = this;
  }
  if (!options.throw_on_early_termination()) {
    running_joins.push_back(this);
  }
}

Join::~Join() {
  leave();
}

bool Join::is_running() {
  return !running_joins.empty();
}

c10::Device Join::device() const {
  return first_with_group(joinables_)->join_device();
}

void Join::verify() const {
  std::string refusal = refusal_of(joinables_, options_);
  for (const Joinable& joinable : joinables_) {
    if (joinable.join_ != nullptr) {
      refusal = joinable.join_name() + " that is in another Join";
    }
  }
  detail::verify_across_ranks(
      *group_,
      device(),
      {describe_join(joinables_, options_)},
      "models and options in a Join",
      "give all ranks the same list, in the same order",
      refusal.empty() ? ""
                      : "Expected models that can join, but got " + refusal);
}

JoinTurn Join::announce(const Joinable& joinable) {
  TORCH_CHECK(busy_ == nullptr || busy_ == &joinable,
              "Expected ",
              busy_->join_name(),
              " to end its turn before ",
              joinable.join_name(),
              " begins one in a Join; call backward() for each model alone");
  TORCH_CHECK(!is_finishing_,
              "Expected no ",
              joinable.join_name(),
              " in the function that finish() of a Join calls, because the "
              "Join makes its turns, but got one; leave it out of the "
              "function, or out of the Join");
  int index = 1;
  for (const Joinable& other : joinables_) {
    if (&other == &joinable) {
      break;
    }
    ++index;
  }
  const auto turn = turn_of(exchange(index));
  check_even(turn);
  busy_ = &joinable;
  return turn;
}

void Join::done(const Joinable& joinable) {
  if (busy_ == &joinable) {
    busy_ = nullptr;
  }
}

void Join::finish(const std::function<void()>& after_turn) {
  if (!group_) {
    return;
  }
  is_finishing_ = true;
  const auto finishing =
      c10::make_scope_exit([this] { is_finishing_ = false; });
  while (true) {
    // A stop request that only this rank has read reaches the others by its
    // votes.
    if (detail::has_polled_stop_file()) {
      stop_requested();
    }
    const auto announced = exchange(kJoined);
    const auto turn = turn_of(announced);
    if (turn.live.empty()) {
      break;
    }
    check_even(turn);
    const int index = announced[turn.last_live()] - 1;
    joinables_[index].get().take_part(turn);
    if (after_turn) {
      after_turn();
    }
  }
  for (Joinable& joinable : joinables_) {
    joinable.end_join(last_live_);
  }
  leave();
}

/// Exchanges the announcements of all ranks: kJoined, or the index of a
/// joinable plus one.
std::vector<int> Join::exchange(int mine) {
  auto input = at::full({1}, mine, at::kInt).to(device());
  auto output = at::empty({group_->getSize()}, input.options());
  const char* what = "all-gather of the ranks with inputs";
  detail::wait(group_->_allgather_base(output, input), *group_, what);
  const auto host = detail::copy_result(output, c10::kCPU, *group_, what);
  const int* begin = host.const_data_ptr<int>();
  return {begin, begin + host.numel()};
}

JoinTurn Join::turn_of(const std::vector<int>& announced) {
  JoinTurn turn;
  std::vector<std::string> names;
  bool is_one = true;
  for (int rank = 0; rank < static_cast<int>(announced.size()); ++rank) {
    names.push_back(name_of(announced[rank]));
    if (announced[rank] != kJoined) {
      turn.live.push_back(rank);
      is_one = is_one && announced[rank] == announced[turn.live.front()];
    }
  }
  TORCH_CHECK(is_one,
              "Expected ranks in a Join to do the same next, but got",
              detail::names_by_rank(names));
  turn.divisor = static_cast<int>(options_.divide_by_initial_world_size()
                                      ? announced.size()
                                      : std::max<size_t>(1, turn.live.size()));
  if (!turn.live.empty()) {
    last_live_ = turn.last_live();
  }
  return turn;
}

void Join::check_even(const JoinTurn& turn) const {
  if (!options_.throw_on_early_termination() ||
      static_cast<int>(turn.live.size()) == group_->getSize()) {
    return;
  }
  std::vector<int> all(group_->getSize());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> without;
  std::set_difference(all.begin(),
                      all.end(),
                      turn.live.begin(),
                      turn.live.end(),
                      std::back_inserter(without));
  TORCH_CHECK(false,
              "Expected all ranks to have the same number of inputs, but ",
              detail::rank_list(without),
              " had none left while ",
              detail::rank_list(turn.live),
              " had");
}

std::string Join::name_of(int announced) const {
  return announced == kJoined ? ""
                              : joinables_[announced - 1].get().join_name() +
                                    " " + std::to_string(announced);
}

void Join::leave() {
  for (Joinable& joinable : joinables_) {
    if (joinable.join_ == this) {
      joinable.join_ = nullptr;
    }
  }
  group_.reset();
  running_joins.erase(
      std::remove(running_joins.begin(), running_joins.end(), this),
      running_joins.end());
}

}  // namespace ddp
