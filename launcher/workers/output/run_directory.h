#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/plan/plan.h"

namespace launcher {

/// The folder of one job's files:
/// `<log dir>/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,
/// stderr.log,error.json}`, and beside the ranks' folders of an attempt
/// filtered_stdout.log and filtered_stderr.log where they are asked for.
///
/// In a --log-dir everything has the rights that the caller's umask gives, so
/// that whoever collects logs can read them; umask 077 keeps them private. In a
/// folder with the bit of its group (chmod g+s) it belongs to that group.
/// --log-mode gives other rights, whatever umask says and wherever the logs
/// lie. Files that are there are not written to, and no link below the
/// --log-dir is followed.
///
/// Without --log-dir the folder is its owner's alone. It lies in the folder of
/// the worker that ddprun itself is, or where Python's programs put such files:
/// the first of $TMPDIR, /tmp and /var/tmp that can be written to, else
/// /dev/shm. It is removed by the destructor, unless --redirects or --tee ask
/// for files to be kept there; an empty folder always is. Where none can be
/// written to and no file is asked for, there is no folder: workers then have
/// no error file.
class RunDirectory {
 public:
  /// @param places to try after the environment's own
  /// @throws LaunchError when a folder that is needed cannot be made
  explicit RunDirectory(const Job& job,
                        const std::vector<std::string>& places = {
                            "/tmp", "/var/tmp", "/dev/shm"});
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Empty when there is none.
  const std::string& path() const { return path_; }
  bool is_kept() const { return is_kept_; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

/// Makes a folder that is its owner's alone, beside other temporary files: see
/// RunDirectory. Empty where none can be made.
///
/// @throws LaunchError where none can be made and it is needed
std::string make_temporary_folder(const Job& job,
                                  bool is_needed,
                                  const std::vector<std::string>& places = {
                                      "/tmp", "/var/tmp", "/dev/shm"});

/// Whether the files of a job outlive it: see RunDirectory.
bool keeps_files(const Job& job);

/// What path() would be, with XXXXXX for the random part: for --dry-run.
std::string run_directory_pattern(const Job& job);
/// And what make_temporary_folder() would make.
std::string temporary_folder_pattern(const Job& job);

/// Makes a folder, with its parents.
///
/// @throws LaunchError when it cannot be made
void make_directories(const std::string& path);

/// Makes the folder of an attempt, which a worker may have made, with its
/// parents. A link in its place is refused: a worker of an earlier attempt may
/// have laid it there.
///
/// @param mode of the files to be in it; none: umask says
/// @throws LaunchError when it cannot be made
void make_attempt_folder(const std::string& path, std::optional<mode_t> mode);

/// Makes a worker's folder in that of its attempt, which is there. As above.
void make_worker_folder(const std::string& path,
                        std::optional<mode_t> mode = {});

/// Makes a log file; it must not exist.
///
/// @param mode its rights; none: umask says
/// @throws LaunchError when it cannot be made
Fd create_log(const std::string& path, std::optional<mode_t> mode = {});

}  // namespace launcher
