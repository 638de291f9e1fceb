#pragma once

#include <string>

// The folder DDPRUN_JOB_DIR, through which ddprun and its workers exchange
// files under --hang-timeout and --on-preempt. It is on a local file system and
// belongs to one job; a ddprun that a worker starts makes its own. Includes no
// LibTorch: ddprun uses it, too.
//
// progress_3 is written by rank 3 under --hang-timeout. Any change of the file
// is progress: of its text, or of its time (`touch`). So any program can
// report:
//
//   echo "step 12" > "$DDPRUN_JOB_DIR/progress_$RANK"
//
// The file has one line of at most 4,096 bytes. The following words have a
// meaning; all other words are shown to the user if the worker hangs:
//
// - limit=600      the next change may take 600 seconds, for an evaluation or a
//                  save; less than --hang-timeout has no effect
// - limit=3x       the next change may take three times --hang-timeout
// - collectives=7  number of collectives that the rank has begun; a rank with
//                  fewer than the others is the rank that they wait for
// - waits=1        the last collective may wait for other ranks
// - pass=12        number of completed backward passes
// - beat=9         no meaning: a number that a program may count up to report
// - pid=123        process that writes the file, if it is a child of the worker
//
// A worker that has not written yet counts as hung only if all workers of its
// host that have written are overdue and wait. The first report usually marks
// the start, so the second report may take five times --hang-timeout.
//
// stop_3 is for a request under --on-preempt that rank 3 saves and ends. A
// worker that wants requests creates the file, empty, when it starts; a worker
// without the file gets the signal itself. When the signal arrives, ddprun
// atomically replaces the file by one with this line:
//
//   signal=SIGUSR1 seconds=60
//
// So any program can check whether the file is empty:
//
//   : >> "$DDPRUN_JOB_DIR/stop_$RANK"                  # at the start
//   if [ -s "$DDPRUN_JOB_DIR/stop_$RANK" ]; then ...   # once a step
//
// Workers on other hosts may get no request, so ranks that must stop at the
// same step have to agree, as ddp::stop_requested() does.
//
// stop_signal has the number of the signal. It exists only under --on-preempt.
namespace ddp::detail {

/// Paths of one rank's files in the folder.
struct JobFiles {
  std::string progress;
  std::string stop;
  std::string stop_signal;  ///< the same for all ranks
};

/// @param rank in digits, as in RANK
JobFiles files_of_rank(const std::string& directory, const std::string& rank);

/// Returns the files of this process's rank, from DDPRUN_JOB_DIR and RANK. All
/// paths are empty if ddprun has given none.
JobFiles own_job_files();

}  // namespace ddp::detail
