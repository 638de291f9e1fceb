#include "ddp/shared_memory/share_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/job/text_collectives.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {
namespace {

ino_t inode_of(const FileDescriptor& file) {
  struct stat status {};
  check(::fstat(file.get(), &status), "fstat");
  return status.st_ino;
}

/// Returns where processes of this user can open the file, and its inode.
std::string offer_of(const FileDescriptor& file) {
  return "/proc/" + std::filesystem::read_symlink("/proc/self").string() +
         "/fd/" + std::to_string(file.get()) + " " +
         std::to_string(inode_of(file));
}

FileDescriptor take(const std::string& offer) {
  std::istringstream in(offer);
  std::string path;
  ino_t inode = 0;
  in >> path >> inode;
  FileDescriptor file(check(::open(path.c_str(), O_RDWR | O_CLOEXEC), path));
  if (inode_of(file) != inode) {
    throw std::system_error(ESTALE, std::generic_category(), path);
  }
  return file;
}

/// Returns the error of `body`, or "".
template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::system_error& error) {
    return error.what();
  }
}

}  // namespace

std::string host_name() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat processes {};
  struct stat network {};
  if (boot_id.empty() || ::stat("/proc/self/ns/pid", &processes) != 0 ||
      ::stat("/proc/self/ns/net", &network) != 0) {
    return "";
  }
  return boot_id + " " + std::to_string(processes.st_ino) + " " +
         std::to_string(network.st_ino);
}

std::shared_ptr<SharedMemory> share_memory(c10d::Backend& group,
                                           const std::string& host) {
  const int ranks = group.getSize();
  const auto hosts =
      all_gather_text(group, c10::kCPU, host, "the hosts' names");
  if (host.empty() || ranks == 1 ||
      std::count(hosts.begin(), hosts.end(), host) != ranks) {
    return nullptr;
  }
  FileDescriptor file;
  std::string offer;
  std::string problem;
  if (group.getRank() == 0) {
    problem = problem_of([&] {
      file = SharedMemory::make_file(ranks, SumBoard::bytes(ranks));
      offer = offer_of(file);
    });
  }
  offer = broadcast_text(group, c10::kCPU, offer, "shared memory");
  std::shared_ptr<SharedMemory> memory;
  if (!offer.empty()) {
    problem = problem_of([&] {
      memory = std::make_shared<SharedMemory>(
          file ? std::move(file) : take(offer), ranks, SumBoard::bytes(ranks));
    });
  }
  const auto problems =
      all_gather_text(group, c10::kCPU, problem, "shared memory");
  const auto found = std::find_if(problems.begin(),
                                  problems.end(),
                                  [](const auto& one) { return !one.empty(); });
  if (found == problems.end()) {
    return memory;
  }
  if (group.getRank() == 0) {
    TORCH_WARN(
        "The ranks sum gradients over Gloo, not in shared memory, "
        "because rank ",
        found - problems.begin(),
        " could not map it: ",
        *found,
        ". DDP_SHARED_MEMORY=0 chooses Gloo without this warning");
  }
  return nullptr;
}

}  // namespace ddp::detail
