#include "test/fake_gpu/nccl/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace fake_gpu {
namespace {

const char* name_of(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce",
                                    "broadcast",
                                    "reduce",
                                    "all_gather",
                                    "reduce_scatter",
                                    "all_to_all",
                                    "send",
                                    "receive"};
  return kNames[static_cast<int>(kind)];
}

std::string name_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "int8";
    case ncclUint8:
      return "uint8";
    case ncclInt32:
      return "int32";
    case ncclInt64:
      return "int64";
    case ncclFloat16:
      return "float16";
    case ncclBfloat16:
      return "bfloat16";
    case ncclFloat32:
      return "float32";
    case ncclFloat64:
      return "float64";
    default:
      return "elements of type " + std::to_string(type);
  }
}

const char* name_of(ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclSum:
      return "sum";
    case ncclProd:
      return "product";
    case ncclMax:
      return "max";
    case ncclMin:
      return "min";
    default:
      return "average";
  }
}

int descriptor_of(const std::string& name) {
  return std::stoi(name.substr(name.rfind('/') + 1));
}

}  // namespace

std::string text_of(const CallShape& shape) {
  return std::string(name_of(shape.kind)) + " of " +
         std::to_string(shape.count) + " " + name_of(shape.type) + ", " +
         name_of(shape.reduction) + ", root " + std::to_string(shape.root);
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

struct Board::Layout {
  std::atomic<uint32_t> present;
  Rank rank[kMaxRanks];
};

std::string Board::create() {
  const int file = ::memfd_create("fake_gpu_nccl", MFD_CLOEXEC);
  if (file < 0) {
    throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file);
}

void Board::forget(const std::string& name) {
  if (name.rfind("/proc/" + std::to_string(::getpid()) + "/", 0) == 0) {
    ::close(descriptor_of(name));
  }
}

Board::Board(const std::string& name, int ranks)
    : ranks_(ranks),
      bytes_(sizeof(Layout) + ranks * kSlotBytes +
             size_t(ranks) * ranks * kMailBytes) {
  const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    throw std::runtime_error("the rank that made " + name + " has gone");
  }
  // Every rank sets the same length; new memory is zero.
  void* memory = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
    memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("cannot map " + name);
  }
  layout_ = static_cast<Layout*>(memory);
}

Board::~Board() {
  ::munmap(layout_, bytes_);
}

std::atomic<uint32_t>& Board::present() {
  return layout_->present;
}

Board::Rank& Board::rank(int rank) {
  return layout_->rank[rank];
}

char* Board::slot(int rank) {
  return reinterpret_cast<char*>(layout_ + 1) + rank * kSlotBytes;
}

char* Board::mail(int from, int to) {
  return slot(ranks_) + (size_t(from) * ranks_ + to) * kMailBytes;
}

}  // namespace fake_gpu
