#include "test/launcher/ddprun/run_ddprun.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace launcher::test {
namespace {

// Time for leftovers of a job to disappear after ddprun has ended.
constexpr int kTimeToDieMs = 20'000;

std::string tail_of(const std::string& text) {
  constexpr size_t kMost = 500;
  return "\"" + text.substr(text.size() - std::min(text.size(), kMost)) + "\"";
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

Pipe make_input(const std::string& input) {
  Pipe pipe = make_pipe();
  check(static_cast<int>(::write(pipe.write.get(), input.data(), input.size())),
        "write");
  return pipe;
}

/// Removes a warning that depends on the machine: a container may allow the
/// tests fewer CPUs than a test has workers.
std::string without_warning_of_cpus(std::string text) {
  const size_t found = text.find(" CPUs, by affinity or a quota");
  if (found != std::string::npos) {
    const size_t begin = text.rfind('\n', found) + 1;  // 0 without one
    text.erase(begin, text.find('\n', found) + 1 - begin);
  }
  return text;
}

[[noreturn]] void exec_ddprun(
    const Ddprun::Arguments& arguments,
    const std::map<std::string, std::string>& variables,
    const std::string& temporary) {
  std::vector<char*> argv{const_cast<char*>(DDPRUN_PATH)};
  for (const auto& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  ::setenv("XDG_RUNTIME_DIR", temporary.c_str(), 1);
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ::execv(DDPRUN_PATH, argv.data());
  ::_exit(98);
}

}  // namespace

std::string resource(const std::string& name) {
  return std::string(DDP_TEST_RESOURCES_DIR) + "/" + name;
}

std::string ddprun_path() {
  return DDPRUN_PATH;
}

std::string in_shell(const std::string& path) {
  return "'" + path + "'";
}

std::vector<std::string> Result::lines_of(const std::string& prefix) const {
  std::vector<std::string> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) {
    if (line.compare(0, prefix.size(), prefix) == 0) {
      lines.push_back(line.substr(prefix.size()));
    }
  }
  return lines;
}

Ddprun::Ddprun(const Arguments& arguments,
               const std::map<std::string, std::string>& variables,
               const std::string& input,
               Bound bound,
               const std::function<void()>& in_child)
    : bound_(bound), deadline_(std::chrono::steady_clock::now() + bound.time) {
  Pipe in = make_input(input);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe life = make_pipe();
  pid_ = check(::fork(), "fork");
  if (pid_ == 0) {
    ::dup2(in.read.get(), 0);
    ::dup2(out.write.get(), 1);
    ::dup2(err.write.get(), 2);
    ::fcntl(life.write.get(), F_SETFD, 0);  // inherited by the whole job
    // A shell ignores these signals in processes that it starts in the
    // background.
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGQUIT, SIG_DFL);
    if (in_child) {
      in_child();
    }
    exec_ddprun(arguments, variables, temporary_.path());
  }
  process_.reset(check(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)),
                       "pidfd_open"));
  in_ = std::move(in.write);
  out_.fd = std::move(out.read);
  err_.fd = std::move(err.read);
  life_.fd = std::move(life.read);
}

Ddprun::~Ddprun() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void Ddprun::wait_for(std::span<pollfd> any, const std::string& what) const {
  using namespace std::chrono;
  using namespace std::chrono_literals;
  const auto left = ceil<milliseconds>(deadline_ - steady_clock::now());
  const int timeout_ms = static_cast<int>(std::max(left, 0ms).count());
  const int ready = retry_interrupted(
      [&] { return ::poll(any.data(), any.size(), timeout_ms); });
  if (ready > 0) {
    return;
  }
  throw std::runtime_error(
      std::string(bound_.place.file) + ":" + std::to_string(bound_.place.line) +
      ": ddprun took longer than " + std::to_string(bound_.time.count()) +
      " s, waiting for " + what + "; stdout ends with: " + tail_of(out_.text) +
      "; stderr ends with: " + tail_of(err_.text));
}

/// Returns false at the end of the stream.
bool Ddprun::read_some(Stream& stream) const {
  char buffer[64 * 1024];
  pollfd ready[] = {{stream.fd.get(), POLLIN, 0}};
  wait_for(ready, "output");
  const ssize_t size = retry_interrupted(
      [&] { return ::read(stream.fd.get(), buffer, sizeof(buffer)); });
  if (size > 0) {
    stream.text.append(buffer, static_cast<size_t>(size));
  }
  return size > 0;
}

void Ddprun::await(Stream& stream, const std::string& text, int count) {
  while (count_of(stream.text, text) < count) {
    if (!read_some(stream)) {
      const Result result = finish();
      throw std::runtime_error("\"" + text + "\" never came before " +
                               result.status.text() +
                               "; stdout ends with: " + tail_of(result.out) +
                               "; stderr ends with: " + tail_of(result.err));
    }
  }
}

void Ddprun::await_out(const std::string& text, int count) {
  await(out_, text, count);
}

void Ddprun::await_err(const std::string& text, int count) {
  await(err_, text, count);
}

int Ddprun::number_after(const std::string& text) const {
  return std::stoi(out_.text.substr(out_.text.find(text) + text.size()));
}

void Ddprun::signal(int number) const {
  ::kill(pid_, number);
}

// Polls every millisecond, because a change of state causes no event.
void Ddprun::await_state(pid_t pid, char state) const {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  for (;;) {
    const std::string stat = ddp::test::read_file(path);
    const size_t at = stat.rfind(')');
    if (at != std::string::npos && stat.substr(at + 2, 1)[0] == state) {
      return;
    }
    if (std::chrono::steady_clock::now() > deadline_) {
      wait_for({}, "state " + std::string(1, state) + ", but has: " + stat);
    }
    ::poll(nullptr, 0, 1);
  }
}

Result Ddprun::finish() {
  close_input();
  bool open = true;
  while (open) {
    pollfd ready[] = {{out_.fd.get(), POLLIN, 0}, {err_.fd.get(), POLLIN, 0}};
    wait_for(ready, "the end of its output");
    open = false;
    for (Stream* stream : {&out_, &err_}) {
      const pollfd& state = ready[stream == &out_ ? 0 : 1];
      if (stream->fd && state.revents != 0 && !read_some(*stream)) {
        stream->fd.reset();
      }
      open = open || stream->fd;
    }
  }
  pollfd ended[] = {{process_.get(), POLLIN, 0}};
  wait_for(ended, "its end");
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  pid_ = -1;
  Result result;
  (info.si_code == CLD_EXITED ? result.status.code : result.status.signal) =
      info.si_status;
  result.out = out_.text;
  result.err = without_warning_of_cpus(err_.text);
  pollfd end{life_.fd.get(), POLLIN, 0};
  result.left_something = ::poll(&end, 1, kTimeToDieMs) == 0;
  return result;
}

bool Ddprun::left_files() const {
  // ddprun's other process may still be removing them.
  const Fd changes(::inotify_init1(IN_CLOEXEC));
  check(
      ::inotify_add_watch(changes.get(), temporary_.path().c_str(), IN_DELETE),
      "inotify_add_watch");
  while (!std::filesystem::is_empty(temporary_.path())) {
    pollfd ready{changes.get(), POLLIN, 0};
    if (::poll(&ready, 1, kTimeToDieMs) == 0) {
      return true;
    }
    char events[4096];
    check(static_cast<int>(::read(changes.get(), events, sizeof(events))),
          "read");
  }
  return false;
}

Result run_ddprun(const Ddprun::Arguments& arguments,
                  const std::map<std::string, std::string>& variables,
                  const std::string& input,
                  Bound bound,
                  const std::function<void()>& in_child) {
  return Ddprun(arguments, variables, input, bound, in_child).finish();
}

}  // namespace launcher::test
