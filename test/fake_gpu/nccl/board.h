#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_gpu {

constexpr int kMaxRanks = 16;
// Size of a rank's part of a round.
constexpr size_t kSlotBytes = size_t{1} << 20;
constexpr size_t kMailBytes = size_t{1} << 16;  // size of a piece of a send

enum class CollectiveKind : int {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  receive
};

/// Parameters of a call that must be equal on all ranks.
struct CallShape {
  CollectiveKind kind = CollectiveKind::all_reduce;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;
  uint64_t count = 0;  // elements per rank

  friend bool operator==(const CallShape&, const CallShape&) = default;
};

/// Returns, for example, "all_reduce of 5 float32, sum".
std::string text_of(const CallShape& shape);
size_t size_of(ncclDataType_t type);

/// Shared memory of the ranks of a communicator, which are threads or processes
/// of one host. A collective is split into rounds: each rank writes its part to
/// its slot, then reads the other slots. A send is written to a mail box in
/// pieces.
///
/// The memory is an unnamed file, which other ranks open through the creating
/// process. It vanishes with the last process, for any reason.
class Board {
 public:
  struct Rank {
    alignas(64) std::atomic<uint64_t> shown;  // rounds with a written part
    uint64_t gpu;  // identifies host and GPU; set before the rank is present
    std::atomic<uint64_t> taken;
    CallShape shape;                            // of the last shown round
    std::atomic<uint64_t> sent[kMaxRanks];      // pieces, to each peer
    std::atomic<uint64_t> received[kMaxRanks];  // pieces, from each peer
    std::atomic<uint64_t> awaited[kMaxRanks];   // pieces, from each peer
  };

  /// Creates the file and returns the name by which other ranks open it. The
  /// name is valid until this process calls forget() with it.
  static std::string create();
  static void forget(const std::string& name);

  /// @throws std::runtime_error if the creating process has exited.
  Board(const std::string& name, int ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::atomic<uint32_t>& present();  // one bit for each rank that has joined
  Rank& rank(int rank);
  char* slot(int rank);
  char* mail(int from, int to);

 private:
  struct Layout;
  int ranks_;
  size_t bytes_;
  Layout* layout_;
};

}  // namespace fake_gpu
