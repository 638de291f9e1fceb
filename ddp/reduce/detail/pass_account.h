#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::detail {

/// A few bits that ranks compare.
struct Stamp {
  uint16_t bits = 0;
  bool knows_bit_0 = true;
  bool knows_others = true;
  uint8_t reducer = 0;  ///< the last four bits of its number, always known
};

/// What one rank can say of a pass of its own.
struct PassAccount {
  int64_t number = 0;  ///< of reduced passes, this one included
  int reducer = 0;     ///< which one of its group's makes the pass
  /// Passes before this one after which the parameters did not change; see
  /// UpdateWatch.
  std::optional<int64_t> without_step;
  /// Parameters without a gradient, in ascending order: those that should have
  /// had one, and those that are frozen.
  std::vector<size_t> missing;
  std::vector<size_t> frozen;
  /// Names of the parameters whose gradient came more or less often than in a
  /// static graph, each with how often; "" for none.
  std::string changed;
  /// Names of the parameters whose gradient came when their bucket had started,
  /// as the graph of the pass does not reach them; "" for none.
  std::string late;
  /// What left this pass, or the one before when the others could not be told
  /// any more; one line, or "".
  std::string failure;

  /// This rank only keeps the others company: it has no gradients, which is no
  /// error, and knows nothing of theirs.
  bool is_shadow = false;

  void note_changed(const std::string& name_and_how_often);
  void note_late(const std::string& name);

  /// Whether this rank says that something is wrong, whatever the others do.
  bool has_failed() const {
    return (!missing.empty() && !is_shadow) || !changed.empty() ||
           !late.empty() || !failure.empty();
  }

  /// The same on ranks that have stepped alike and have frozen the same
  /// parameters. Of others nearly never, when they differ by one step. Bit 0
  /// speaks of the steps.
  Stamp stamp() const;

  /// Ready for the next pass, which still has what froze, and a failure.
  void reset();
};

/// The same in words, for the other ranks.
struct PassReport {
  int64_t number = 0;  ///< 0 of a rank that knows nothing
  int64_t without_step = 0;
  std::string missing;  ///< names, joined by commas
  std::string frozen;
  std::string failure;
  std::string changed;
  std::string late;
};

std::string to_text(const PassReport& report);
PassReport report_of(const std::string& text);

/// Pure: the report of all ranks of which `rank` says what left its pass, and
/// nothing is known of the others.
std::vector<PassReport> failure_on(int rank, int ranks, std::string failure);

/// Why a pass has failed that met another reducer's, whose gradients were added
/// to its own.
std::string crossed_error();

/// Pure: why these ranks' passes are no pass of one training, or what was
/// missing in it. `reports[r]` is rank r's; an empty one where that is not
/// known. Never empty.
std::string pass_error(const std::vector<PassReport>& reports);

}  // namespace ddp::detail
