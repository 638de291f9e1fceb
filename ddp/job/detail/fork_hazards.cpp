#include "ddp/job/detail/fork_hazards.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <string_view>
#include <thread>

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

constexpr const char* kThreads = "/proc/self/task";
constexpr const char* kFiles = "/proc/self/fd";
constexpr milliseconds kLeavePatience{100};
constexpr milliseconds kPause{1};

std::vector<std::string> entries_of(const char* folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(folder),
                                                   ::closedir);
  while (const dirent* entry = handle ? ::readdir(handle.get()) : nullptr) {
    if (entry->d_name[0] != '.') {
      names.emplace_back(entry->d_name);
    }
  }
  return names;
}

std::string target_of(const std::string& link) {
  std::array<char, 256> text{};
  const ssize_t size = ::readlink(link.c_str(), text.data(), text.size());
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

int count_threads() {
  return static_cast<int>(entries_of(kThreads).size());
}

// Waits, because pthread_join returns before the kernel removes the thread.
int count_lasting_threads() {
  int count = count_threads();
  for (auto waited = milliseconds(0); count > 1 && waited < kLeavePatience;
       waited += kPause) {
    std::this_thread::sleep_for(kPause);
    count = count_threads();
  }
  return count;
}

bool is_gpu(const std::string& file) {
  return std::string_view(file).substr(0, 11) == "/dev/nvidia";
}

}  // namespace

ForkHazards find_fork_hazards() {
  ForkHazards hazards;
  hazards.threads = count_lasting_threads();
  for (const auto& name : entries_of(kFiles)) {
    hazards.open_files.push_back(target_of(std::string(kFiles) + "/" + name));
  }
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  hazards.ignores_children =
      action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0;
  return hazards;
}

std::string fork_problem(const ForkHazards& hazards) {
  const std::string advice =
      "; spawn before the first tensor operation, or start the ranks with "
      "ddprun";
  if (hazards.threads < 1) {
    return "Expected to count this process's threads in /proc/self/task, but "
           "cannot read it; mount /proc, or start the ranks with ddprun";
  }
  if (hazards.threads > 1) {
    return "Expected a process with one thread to fork ranks from, but got " +
           std::to_string(hazards.threads) +
           ": threads of OpenMP, CUDA or Gloo do not survive a fork" + advice;
  }
  if (std::any_of(
          hazards.open_files.begin(), hazards.open_files.end(), is_gpu)) {
    return "Expected a process that has not used a GPU to fork ranks from, but "
           "this one has opened one, and CUDA does not survive a fork" +
           advice;
  }
  if (hazards.ignores_children) {
    return "Expected to learn how ranks end, but this process ignores SIGCHLD, "
           "so the kernel forgets it; call signal(SIGCHLD, SIG_DFL) first";
  }
  return "";
}

}  // namespace ddp::detail
