#include "launcher/status/status_client.h"

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "launcher/status/status_json.h"
#include "launcher/status/status_socket.h"
#include "launcher/text_file.h"

namespace launcher {
namespace {

constexpr size_t kMostSockets = 512;
constexpr size_t kMostOfTable = size_t{64} << 20;
/// For others of the same id, once one has answered.
constexpr std::chrono::milliseconds kForNamesakes{250};

std::vector<std::string> sockets_in(const std::string& place) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(place.c_str()),
                                                   ::closedir);
  std::vector<std::string> sockets;
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const std::string name(static_cast<const char*>(entry->d_name));
    if (is_job_folder(name)) {
      sockets.push_back(place + "/" + name + "/" +
                        std::string(kStatusSocketName));
    }
  }
  return sockets;
}

/// One socket that was asked.
struct Asked {
  std::string path;
  Fd socket;
  std::string answer{};
  bool has_ended = false;
  std::optional<JobStatus> status{};  ///< once it has ended
};

void read_answer(Asked& asked) {
  std::array<char, 64 * 1024> piece;
  const ssize_t size = retry_interrupted([&] {
    return ::recv(asked.socket.get(), piece.data(), piece.size(), 0);
  });
  if (size > 0 && asked.answer.size() <= 2 * kMostStatusBytes) {
    asked.answer.append(piece.data(), static_cast<size_t>(size));
  } else if (size >= 0 || errno != EAGAIN) {
    asked.has_ended = true;
    asked.status = parse_status(asked.answer);
  }
}

/// Until all have ended or the time is over.
void read_answers(std::vector<Asked>& all,
                  const std::string& job,
                  std::chrono::steady_clock::time_point deadline) {
  using namespace std::chrono;
  while (true) {
    std::vector<pollfd> ready;
    std::vector<Asked*> who;
    for (Asked& asked : all) {
      if (!asked.has_ended) {
        ready.push_back({asked.socket.get(), POLLIN, 0});
        who.push_back(&asked);
      }
    }
    const auto left = ceil<milliseconds>(deadline - steady_clock::now());
    if (who.empty() || left.count() <= 0) {
      return;
    }
    ::poll(ready.data(), ready.size(), static_cast<int>(left.count()));
    for (size_t index = 0; index < who.size(); ++index) {
      if (ready[index].revents == 0) {
        continue;
      }
      read_answer(*who[index]);
      const auto& status = who[index]->status;
      if (!job.empty() && status && is_asked_for(*status, job)) {
        deadline = std::min(deadline, steady_clock::now() + kForNamesakes);
      }
    }
  }
}

}  // namespace

std::vector<std::string> find_status_sockets(const Environment& environment) {
  std::vector<std::string> found =
      listening_jobs(read_text("/proc/net/unix", kMostOfTable));
  std::vector<std::string> places{"/tmp", "/var/tmp", "/dev/shm"};
  if (const std::string* chosen = find_variable(environment, "TMPDIR")) {
    places.push_back(*chosen);
  }
  for (const std::string& place : places) {
    const auto more = sockets_in(place);
    found.insert(found.end(), more.begin(), more.end());
  }
  std::vector<std::string> sockets;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& path : found) {
    struct stat status {};
    if (sockets.size() < kMostSockets && ::lstat(path.c_str(), &status) == 0 &&
        S_ISSOCK(status.st_mode) && status.st_uid == ::geteuid() &&
        seen.insert({status.st_dev, status.st_ino}).second) {
      sockets.push_back(path);
    }
  }
  return sockets;
}

StatusAnswers ask_jobs(const std::vector<std::string>& sockets,
                       const std::string& job,
                       std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  StatusAnswers answers;
  std::vector<Asked> all;
  for (const std::string& path : sockets) {
    if (Fd socket = connect_to_path(path)) {
      all.push_back({path, std::move(socket)});
    } else if (errno == ECONNREFUSED) {
      answers.stale.push_back(path);
    } else if (errno == EAGAIN) {
      answers.silent.push_back({path});
    }
  }
  read_answers(all, job, deadline);
  for (Asked& asked : all) {
    if (asked.status) {
      answers.jobs.push_back(std::move(*asked.status));
    } else if (!asked.has_ended || !asked.answer.empty()) {
      answers.silent.push_back({asked.path, peer_of(asked.socket)});
    }
  }
  return answers;
}

}  // namespace launcher
