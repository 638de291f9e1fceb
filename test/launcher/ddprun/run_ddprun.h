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
#include "test/launcher/meeting/place.h"
#include "test/support/temporary_folder.h"

namespace launcher::test {

/// Path of a child program of test/resources.
std::string resource(const std::string& name);

/// Path of ddprun, for a job in a job.
std::string ddprun_path();

/// A path as one word of a command line for sh, whatever folder the clone is
/// in.
std::string in_shell(const std::string& path);

/// How a ddprun that a test started ended.
struct Result {
  ExitStatus status;
  std::string out;
  std::string err;
  bool left_something = false;  ///< a process of the job outlived it

  int code() const { return status.shell_code(); }
  /// Lines of `out` that start with the prefix, without it.
  std::vector<std::string> lines_of(const std::string& prefix) const;
};

/// How long a run of ddprun may take, and whose it is. Normal is a fraction of
/// a second; the bound is below the grace period of 30 s, whose passing
/// unnoticed would be a defect.
struct Bound {
  Bound(std::chrono::seconds bound_time = std::chrono::seconds(20),
        Place bound_place = Place::current())
      : time(bound_time), place(bound_place) {}

  std::chrono::seconds time;
  Place place;  ///< in the test
};

/// The real ddprun as a child of the test.
///
/// Every process of the job inherits the write end of a pipe: when it has
/// ended, nobody is left. All waiting is for such events, and bounded: a run
/// that takes too long throws an error that names its place in the test.
class Ddprun {
 public:
  using Arguments = std::vector<std::string>;

  /// @param in_child what the test's child does before it becomes ddprun; see
  ///   child_setup.h
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

  /// The number after `text` in what stdout has shown.
  int number_after(const std::string& text) const;

  void signal(int number) const;

  /// Waits until a process of the job is in a state of /proc/PID/stat: 'T' when
  /// it is stopped.
  void await_state(pid_t pid, char state) const;

  /// stdin of the first worker ends; finish() does it too.
  void close_input() { in_.reset(); }
  void close_out() { out_.fd.reset(); }

  /// Waits for the end of ddprun, then of everything it started.
  Result finish();

  /// Call it after finish(): true when the job's temporary files stay. TMPDIR
  /// is a folder of the test's own.
  bool left_files() const;

 private:
  struct Stream {
    Fd fd;
    std::string text;
  };

  void await(Stream& stream, const std::string& text, int count) const;
  bool read_some(Stream& stream) const;
  /// Waits for one of them until the bound of the run.
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
