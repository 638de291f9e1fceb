#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launcher/base/exit_status.h"
#include "launcher/base/fd.h"
#include "test/launcher/hosts/place.h"
#include "test/support/temporary_folder.h"

namespace launcher::test {

/// Returns the path of a child program of test/resources.
std::string resource(const std::string& name);

/// Returns the path of ddprun, for a job inside a job.
std::string ddprun_path();

/// Quotes a path as one word of a command line for sh, for any folder of the
/// clone.
std::string in_shell(const std::string& path);

/// The result of a ddprun that a test started.
struct Result {
  ExitStatus status;
  std::string out;
  std::string err;
  bool left_something = false;  ///< a process outlived ddprun

  int code() const { return status.shell_code(); }
  /// Returns the lines of `out` that start with the prefix, without it.
  std::vector<std::string> lines_of(const std::string& prefix) const;
};

/// The longest duration of a run of ddprun, and the test's source location. A
/// run takes a fraction of a second. The bound is below the grace period of 30
/// s, so that an unwanted grace period is an error.
struct Bound {
  Bound(std::chrono::seconds bound_time = std::chrono::seconds(20),
        Place bound_place = Place::current())
      : time(bound_time), place(bound_place) {}

  std::chrono::seconds time;
  Place place;  ///< in the test
};

/// The real ddprun as a child of the test.
///
/// Every process of the job inherits the write end of a pipe. The end of the
/// pipe shows that no process is left. All waits are for events, and bounded: a
/// run that takes too long throws an error with its source location in the
/// test.
class Ddprun {
 public:
  using Arguments = std::vector<std::string>;

  /// @param in_child is called in the child before it executes ddprun; see
  ///     child_setup.h
  explicit Ddprun(const Arguments& arguments,
                  const std::map<std::string, std::string>& variables = {},
                  const std::string& input = "",
                  Bound bound = {},
                  const std::function<void()>& in_child = {});
  ~Ddprun();
  Ddprun(const Ddprun&) = delete;
  Ddprun& operator=(const Ddprun&) = delete;

  pid_t pid() const { return pid_; }

  /// Waits until stdout (stderr) has shown `text` `count` times.
  void await_out(const std::string& text, int count = 1);
  void await_err(const std::string& text, int count = 1);

  /// Returns the number after `text` in the output so far.
  int number_after(const std::string& text) const;

  void signal(int number) const;

  /// Waits until a process of the job is in a state of /proc/PID/stat, for
  /// example 'T', stopped.
  void await_state(pid_t pid, char state) const;

  /// Ends stdin of the first worker. finish() does so, too.
  void close_input() { in_.reset(); }
  void close_out() { out_.fd.reset(); }

  /// Waits for the end of ddprun, then of all processes that it started.
  Result finish();

  /// Returns whether temporary files of the job are left. Call it after
  /// finish(). TMPDIR and XDG_RUNTIME_DIR are a folder of the
  /// test.
  bool left_files() const;

 private:
  struct Stream {
    Fd fd;
    std::string text;
  };

  void await(Stream& stream, const std::string& text, int count);
  bool read_some(Stream& stream) const;
  /// Waits for one of the descriptors until the bound of the run.
  void wait_for(std::span<pollfd> any, const std::string& what) const;

  Bound bound_;
  std::chrono::steady_clock::time_point deadline_;
  ddp::test::TemporaryFolder temporary_;
  pid_t pid_ = -1;
  Fd process_;
  Fd in_;
  Stream out_;
  Stream err_;
  Stream life_;
};

/// Starts ddprun and waits for its end.
Result run_ddprun(const Ddprun::Arguments& arguments,
                  const std::map<std::string, std::string>& variables = {},
                  const std::string& input = "",
                  Bound bound = {},
                  const std::function<void()>& in_child = {});

}  // namespace launcher::test
