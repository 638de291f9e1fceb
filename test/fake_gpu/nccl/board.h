#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_gpu {

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = size_t{1} << 20;  // a rank shows at a time
constexpr size_t kMailBytes = size_t{1} << 16;  // of a send at a time

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

/// What all ranks must agree on.
struct CallShape {
  CollectiveKind kind = CollectiveKind::all_reduce;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;
  uint64_t count = 0;  // elements that a rank contributes

  friend bool operator==(const CallShape&, const CallShape&) = default;
};

/// Such as "all_reduce of 5 float32, sum".
std::string text_of(const CallShape& shape);
size_t size_of(ncclDataType_t type);

/// Memory in which the ranks of a communicator meet, threads or processes of
/// one host. A collective is cut into rounds: each rank shows its part in its
/// slot, then takes the others'. A send is put into a mail box piece by piece.
///
/// It is a file without a name, which ranks open through the process that made
/// it, so that nothing is left over however they end.
class Board {
 public:
  struct Rank {
    alignas(64) std::atomic<uint64_t> shown;  // rounds
    uint64_t gpu;  // of which host and which; set before it is present
    std::atomic<uint64_t> taken;
    CallShape shape;                            // of the round shown last
    std::atomic<uint64_t> sent[kMaxRanks];      // pieces, to each peer
    std::atomic<uint64_t> received[kMaxRanks];  // pieces, from each peer
    std::atomic<uint64_t> awaited[kMaxRanks];   // pieces, from each peer
  };

  /// A name by which other ranks open it. It stays while this process has not
  /// called forget() with it.
  static std::string create();
  static void forget(const std::string& name);

  /// Throws std::runtime_error when the process that made it has gone.
  Board(const std::string& name, int ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::atomic<uint32_t>& present();  // a bit for each rank that has joined
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
