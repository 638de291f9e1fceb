#include "launcher/progress/own_stack.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "ddp/detail/job_files/stack_text.h"
#include "launcher/progress/demangled.h"
#include "launcher/progress/process_state.h"
#include "launcher/progress/worker_file.h"
#include "launcher/shortened.h"
#include "launcher/text_file.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongest{3'000};
constexpr milliseconds kFirstWord{2'000};
constexpr milliseconds kSilence{500};
// How often to look where the kernel tells of no change.
constexpr milliseconds kLookInterval{50};
constexpr size_t kMostOwnShown = 6000;
constexpr size_t kMostOfOffer = 16;

milliseconds elapsed_since(steady_clock::time_point then) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - then);
}

/// Waits for a change of a file, or a short time.
class FileChanges {
 public:
  explicit FileChanges(const std::string& path)
      : events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    ::inotify_add_watch(
        events_.get(), path.c_str(), IN_MODIFY | IN_DONT_FOLLOW);
  }

  void wait() const {
    pollfd entry{events_.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(kLookInterval.count()));
    std::array<char, 4096> ignored;
    while (events_ &&
           ::read(events_.get(), ignored.data(), ignored.size()) > 0) {
    }
  }

 private:
  Fd events_;
};

/// Of glibc's backtrace_symbols_fd() what people read; others as they are.
std::string frame_text(std::string_view line) {
  const size_t end = line.rfind(")[0x");
  const size_t plus = line.substr(0, end).rfind("+0x");
  const size_t open = line.substr(0, plus).rfind('(');
  if (end == line.npos || plus == line.npos || open == line.npos) {
    return std::string(line);
  }
  const std::string_view path = line.substr(0, open);
  return demangled(line.substr(open + 1, end - open - 1)) + " in " +
         std::string(path.substr(path.rfind('/') + 1));
}

char printable(char c) {
  return c == '\n' || (c >= ' ' && c <= '~') ? c : c == '\t' ? ' ' : '?';
}

}  // namespace

std::optional<int> stack_signal(pid_t pid, const std::string& file) {
  const Fd offer = open_worker_file(file);
  const auto signal =
      offer ? ddp::detail::offered_signal(read_from(offer, 0, kMostOfOffer))
            : std::nullopt;
  const std::string status =
      read_text("/proc/" + std::to_string(pid) + "/status");
  return signal && names_signal(status, "SigCgt:", *signal) && !is_stopped(pid)
             ? signal
             : std::nullopt;
}

bool is_answered(std::string_view written,
                 milliseconds since_asked,
                 milliseconds since_change) {
  return ddp::detail::is_whole_stack(written) || since_asked > kLongest ||
         since_change > (written.empty() ? kFirstWord : kSilence);
}

std::string own_stack(pid_t pid, int signal, const std::string& file) {
  const Fd stacks = open_worker_file(file);
  const FileChanges changes(file);
  struct stat status {};
  if (!stacks || ::fstat(stacks.get(), &status) != 0 ||
      ::kill(pid, signal) != 0) {
    return "";
  }
  const auto asked = steady_clock::now();
  auto changed = asked;
  std::string text;
  while (!is_answered(text, elapsed_since(asked), elapsed_since(changed))) {
    changes.wait();
    std::string now =
        read_from(stacks, status.st_size, ddp::detail::kMostStackBytes);
    if (now.size() != text.size()) {
      text = std::move(now);
      changed = steady_clock::now();
    }
  }
  return shown_stack(text);
}

std::string shown_stack(std::string_view written) {
  written = written.substr(0, ddp::detail::kMostStackBytes);
  if (ddp::detail::is_whole_stack(written)) {
    written.remove_suffix(ddp::detail::kStackEnd.size());
  }
  std::string text;
  while (!written.empty()) {
    const std::string_view line = written.substr(0, written.find('\n'));
    text += (text.empty() ? "" : "\n") + frame_text(line);
    written.remove_prefix(std::min(line.size() + 1, written.size()));
  }
  std::transform(text.begin(), text.end(), text.begin(), printable);
  return shortened(text, kMostOwnShown);
}

}  // namespace launcher
