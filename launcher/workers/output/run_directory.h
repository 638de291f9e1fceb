#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/plan/plan.h"

namespace launcher {

// All functions of this file may wait for a file server, so ddprun calls them
// on an OutputThread while a job runs.

/// Creates the folder of one job's files: `<log dir>/<run
/// id>_<random>/attempt_<n>/<local rank>/{stdout.log, stderr.log,error.json}`,
/// and in the attempt's folder filtered_stdout.log and filtered_stderr.log if
/// requested.
///
/// With --log-dir, all files get the permissions that the caller's umask gives,
/// so that log collectors can read them; umask 077 keeps them private. In a
/// folder with the setgid bit (chmod g+s), files belong to the folder's group.
/// Existing files are never written to, and symbolic links below
/// --log-dir are not followed.
///
/// Without --log-dir, the folder has mode 0700. If ddprun itself runs as a
/// worker, the folder is created in that worker's folder. Otherwise it is
/// created as Python's tempfile does: in the first writable folder of $TMPDIR,
/// /tmp, /var/tmp and /dev/shm. The destructor removes the folder unless
/// --redirects or --tee ask for files; an empty folder is always removed. If no
/// place is writable and no files are requested, there is no folder and workers
/// have no error file.
class RunDirectory {
 public:
  /// @param places to try after the folders named by the environment
  /// @throws LaunchError if a required folder cannot be created
  explicit RunDirectory(const Job& job,
                        const std::vector<std::string>& places = {
                            "/tmp", "/var/tmp", "/dev/shm"});
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Path of the folder; empty if there is none.
  const std::string& path() const { return path_; }
  bool is_kept() const { return is_kept_; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

/// Creates a folder of mode 0700 in the first usable place for temporary files;
/// see RunDirectory. Returns "" if none can be created.
///
/// @throws LaunchError if none can be created and `is_needed`
std::string make_temporary_folder(const Job& job,
                                  bool is_needed,
                                  const std::vector<std::string>& places = {
                                      "/tmp", "/var/tmp", "/dev/shm"});

/// Returns whether the files of a job are kept after it; see RunDirectory.
bool keeps_files(const Job& job);

/// Returns the value of RunDirectory::path() with XXXXXX for the random part,
/// for --dry-run.
std::string run_directory_pattern(const Job& job);
/// Returns the path of make_temporary_folder() with XXXXXX for the random part,
/// for --dry-run.
std::string temporary_folder_pattern(const Job& job);

/// Creates a folder and its parents.
///
/// @throws LaunchError if a folder cannot be created
void make_directories(const std::string& path);

/// Creates the folder of an attempt and its parents. The folder may exist,
/// because a worker may have created it. A symbolic link is refused: a worker
/// of an earlier attempt may have placed it.
///
/// @throws LaunchError if the folder cannot be created
void make_attempt_folder(const std::string& path);

/// Creates a worker's folder inside the existing folder of its attempt. Errors
/// as for make_attempt_folder().
void make_worker_folder(const std::string& path);

/// Name of a worker's log of stderr in WorkerSpec::directory.
inline constexpr const char* kErrorLog = "stderr.log";

struct LogFile {
  std::string path;  ///< empty: none
  Fd fd;
};

/// The open log files of an attempt.
struct AttemptFiles {
  struct OfWorker {
    LogFile out;
    LogFile err;
  };
  std::vector<OfWorker> workers;  ///< in the plan's order
  Fd filtered_out;
  Fd filtered_err;
};

/// Creates the folders and log files of an attempt.
///
/// @throws LaunchError if one cannot be created
AttemptFiles make_attempt_files(const LaunchPlan& plan);

/// Creates a log file, which must not exist.
///
/// @param mode permissions of the file; std::nullopt: umask decides
/// @throws LaunchError if the file cannot be created
Fd create_log(const std::string& path, std::optional<mode_t> mode = {});

}  // namespace launcher
