#include "launcher/machine/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeToDie{1'000};
constexpr milliseconds kBetweenChecks{50};

Fd open_null() {
  return Fd(check(::open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
}

/// The shell looks the program up in PATH and becomes it.
std::vector<std::string> with_path(const std::vector<std::string>& argv) {
  std::vector<std::string> result = argv;
  if (argv.front().find('/') == std::string::npos) {
    const std::initializer_list<std::string> shell{
        kShell, "-c", "exec \"$@\"", "sh"};
    result.insert(result.begin(), shell);
  }
  return result;
}

}  // namespace

Command::Command(EventLoop& loop, const CommandSpec& spec, Handler handler)
    : loop_(loop),
      handler_(std::move(handler)),
      most_bytes_(spec.most_bytes),
      grace_(spec.grace) {
  using Errors = CommandSpec::Errors;
  const Fd null = open_null();
  Pipe out = make_pipe();
  Pipe err = spec.errors == Errors::capture ? make_pipe() : Pipe();
  const auto argv = with_path(spec.argv);
  const InheritedVariables inherited(spec.environment);
  const Execution execution(argv.front(), argv, inherited, {}, {});
  process_.emplace(ProcessSpec{
      .execution = &execution,
      .stdin_fd = null.get(),
      .stdout_fd = out.write.get(),
      .stderr_fd = spec.errors == Errors::capture     ? err.write.get()
                   : spec.errors == Errors::to_output ? out.write.get()
                                                      : null.get(),
      .error_fd = null.get()});
  timer_ = "command " + std::to_string(pid());
  poll_ = timer_ + " poll";
  output_.pipe = std::move(out.read);
  errors_.pipe = std::move(err.read);
  watch(output_);
  watch(errors_);
  if (process_->pidfd() >= 0) {
    exit_watch_ =
        loop_.watch(process_->pidfd(), EPOLLIN, [this] { check_end(); });
  } else {
    loop_.arm_timer(poll_, kBetweenChecks, [this] { check_end(); });
  }
  loop_.arm_timer(timer_, spec.limit, [this] { on_limit(); });
}

Command::~Command() {
  loop_.unwatch(output_.watch);
  loop_.unwatch(errors_.watch);
  loop_.unwatch(exit_watch_);
  loop_.disarm_timer(timer_);
  loop_.disarm_timer(poll_);
  if (!process_->is_reaped()) {
    process_->signal_group(SIGKILL);
  }
}

void Command::watch(Stream& stream) {
  if (stream.pipe) {
    check(::fcntl(stream.pipe.get(), F_SETFL, O_NONBLOCK), "fcntl");
    stream.watch = loop_.watch(
        stream.pipe.get(), EPOLLIN, [this, &stream] { read(stream); });
  }
}

/// Returns whether more may be in the pipe.
bool Command::read(Stream& stream) {
  std::array<char, 16 * 1024> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(stream.pipe.get(), piece.data(), piece.size()); });
  if (size > 0) {
    stream.text.append(
        piece.data(),
        std::min(static_cast<size_t>(size), most_bytes_ - stream.text.size()));
  } else if (size == 0) {
    loop_.unwatch(std::exchange(stream.watch, 0));
  }
  return size > 0;
}

void Command::check_end() {
  status_ = process_->peek();
  if (status_) {
    process_->signal_group(SIGKILL);
    process_->reap();
    finish();
  } else if (process_->pidfd() < 0) {
    loop_.arm_timer(poll_, kBetweenChecks, [this] { check_end(); });
  }
}

void Command::on_limit() {
  is_late_ = true;
  if (grace_.count() > 0) {
    process_->signal_group(SIGTERM);
    loop_.arm_timer(timer_, grace_, [this] { kill(); });
  } else {
    kill();
  }
}

void Command::kill() {
  process_->signal_group(SIGKILL);
  // The kernel may hold a killed process, and root's may not be killed.
  loop_.arm_timer(timer_, kTimeToDie, [this] { finish(); });
}

void Command::finish() {
  // A process that the command has left behind may write without end.
  constexpr int kMostPieces = 64;  // a pipe holds fewer, unless enlarged
  for (Stream* stream : {&output_, &errors_}) {
    for (int piece = 0; piece < kMostPieces && stream->watch != 0; ++piece) {
      if (!read(*stream)) {
        break;
      }
    }
    loop_.unwatch(std::exchange(stream->watch, 0));
  }
  loop_.unwatch(std::exchange(exit_watch_, 0));
  loop_.disarm_timer(timer_);
  loop_.disarm_timer(poll_);
  const CommandEnd end{is_late_ ? std::nullopt : status_,
                       std::move(output_.text),
                       std::move(errors_.text)};
  // The handler may destroy this object.
  const Handler handler = std::move(handler_);
  handler(end);
}

CommandEnd run_command(const CommandSpec& spec) {
  EventLoop loop;
  std::optional<CommandEnd> end;
  const Command command(
      loop, spec, [&end](const CommandEnd& known) { end = known; });
  while (!end) {
    loop.run_once();
  }
  return *end;
}

}  // namespace launcher
