#pragma once

// Texts of ddprun --help around its options.
namespace launcher {

constexpr const char* kDescription =
    "Starts one worker process per GPU or CPU slot of this host and gives each "
    "its rank.\nA worker's whole lines appear with [rank] before them. When "
    "one "
    "fails, the others are stopped\nand ddprun ends with its exit code, or 128 "
    "+ the signal that ended it.";

constexpr const char* kUsage =
    "ddprun [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM...]\n";

constexpr const char* kExamples =
    "  ddprun --nproc-per-node=4 ./train --epochs 3     four workers\n"
    "  ddprun --gpus 0,2 ./train                        one on each of two "
    "GPUs\n"
    "  ddprun --nproc-per-node=gpu train.py             a Python program\n"
    "  ddprun --max-restarts 3 --tee 3 --log-dir logs ./train\n"
    "                                                   again after failures, "
    "with logs\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr host0 ./train\n"
    "                                                   two hosts; --node-rank "
    "1 on the other\n"
    "  ddprun --nproc-per-node=2 --dry-run ./train      what would be "
    "started\n"
    "  ddprun --nproc-per-node=8 --doctor               is this machine fit "
    "for it?\n";

constexpr const char* kFooter =
    "Every option may be spelt with _ for -, may be cut short while it is "
    "clear (--nproc=4),\nand takes its default from the environment: "
    "PET_NPROC_PER_NODE=4 stands for\n--nproc-per-node=4. In PROGRAM's "
    "arguments $local_rank and ${local_rank} are its number\nand $$ is $. "
    "LOGLEVEL (INFO, WARNING, ERROR) chooses ddprun's own messages, "
    "PYTHON_EXEC\nthe Python of programs that end in .py.";

/// A name and its meaning.
struct Meaning {
  const char* name;
  const char* text;
};

/// ddprun's exit codes; error.h defines the constants.
constexpr Meaning kExitCodes[] = {
    {"0", "All workers ended with 0."},
    {"1",
     "ddprun could not do its part: hosts did not meet, a file could not be "
     "written, output was lost. With --doctor: this machine is not fit."},
    {"2",
     "The command line, or a variable that stands for an option, is wrong."},
    {"126, 127", "PROGRAM cannot be executed; it is not there."},
    {"128 + N", "Signal N ended the worker that failed first, or the job."},
    {"the code of --preempt-code",
     "All workers ended with 0 after the signal of --on-preempt."},
    {"any other", "That of the worker that failed first."}};

/// Variables without an option. Workers also get torchrun's variables.
constexpr Meaning kVariables[] = {
    {"LOGLEVEL",
     "Least of ddprun's own messages: INFO, WARNING, ERROR [WARNING]."},
    {"PYTHON_EXEC", "The Python of programs that end in .py."},
    {"TMPDIR", "Where files of a job lie that has no --log-dir [/tmp]."},
    {"DDPRUN_TOKEN", "A secret that all hosts of a job must know."},
    {"DDPRUN_JOB_DIR",
     "For workers under --hang-timeout and --on-preempt: the folder of the "
     "files progress_$RANK, to report progress to, and stop_$RANK, which tells "
     "a worker that has made it to save and to end."}};

}  // namespace launcher
