#include "test/fake_gpu/nccl/communicator.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

std::string missing_ranks(uint32_t present, int size) {
  std::string text;
  for (int rank = 0; rank < size; ++rank) {
    if ((present >> rank & 1U) == 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return text;
}

bool wait_for_all(std::atomic<uint32_t>& present, int rank, int size) {
  const auto all = (uint32_t{1} << size) - 1;
  const auto end = Clock::now() + settings().join_timeout;
  while (present.load() != all) {
    if (Clock::now() > end) {
      say("rank " + std::to_string(rank) +
          " waited in vain for these ranks to join its communicator: " +
          missing_ranks(present.load(), size));
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Returns a name of the device that is the same in all processes: its entry in
/// CUDA_VISIBLE_DEVICES.
std::string physical_name(int device) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::istringstream names(visible == nullptr ? "" : visible);
  std::string name;
  for (int i = 0; i <= device && std::getline(names, name, ','); ++i) {
    if (i == device) {
      return name;
    }
  }
  return std::to_string(device);
}

/// Returns an id of the GPU. NCCL distinguishes hosts by NCCL_HOSTID if it is
/// set.
uint64_t gpu_of(int device) {
  const char* host = std::getenv("NCCL_HOSTID");
  return std::hash<std::string>()((host == nullptr ? "" : host) +
                                  std::string("/") + physical_name(device));
}

/// Returns true if another rank uses the same GPU, which NCCL refuses.
bool has_duplicate(Board& board, int rank, int size) {
  for (int other = 0; other < size; ++other) {
    if (other != rank && board.rank(other).gpu == board.rank(rank).gpu) {
      say("Duplicate GPU detected: rank " + std::to_string(rank) +
          " and rank " + std::to_string(other) + " both on one CUDA device");
      return true;
    }
  }
  return false;
}

}  // namespace

void Communicator::note(const Point& point) {
  const std::lock_guard lock(mutex_);
  ends_[point.stream] = point.number;
}

void Communicator::drain() {
  std::map<Stream*, uint64_t> ends;
  {
    const std::lock_guard lock(mutex_);
    ends = ends_;
  }
  for (const auto& [stream, number] : ends) {
    wait_for({stream, number});
  }
}

ncclResult_t join(const std::string& name,
                  int rank,
                  int size,
                  int device,
                  std::shared_ptr<Communicator>* result) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    return ncclInvalidArgument;
  }
  const Fault& fault = settings().fault;
  if (fault.kind == Fault::Kind::never_join && fault.rank == rank) {
    say("rank " + std::to_string(rank) + " never joins its communicator");
    while (true) {
      ::pause();
    }
  }
  try {
    auto communicator =
        std::make_shared<Communicator>(name, rank, size, device);
    communicator->board.rank(rank).gpu = gpu_of(device);
    auto& present = communicator->board.present();
    present.fetch_or(uint32_t{1} << rank);
    if (!wait_for_all(present, rank, size)) {
      return ncclSystemError;
    }
    if (has_duplicate(communicator->board, rank, size)) {
      return ncclInvalidUsage;
    }
    *result = std::move(communicator);
  } catch (const std::exception& error) {
    say(error.what());
    return ncclSystemError;
  }
  return ncclSuccess;
}

}  // namespace fake_gpu
