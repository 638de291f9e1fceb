#pragma once

#include <string>
#include <vector>

// Texts of ddprun --help around its options, and the manual page.
namespace launcher {

constexpr const char* kDescription =
    "Starts one worker process per GPU or CPU slot of this host, each with its "
    "rank,\nwhich stands before its lines. When one fails, the others are "
    "stopped, and\nddprun ends with its exit code, or 128 + the signal that "
    "ended it.";

constexpr const char* kUsage =
    "ddprun [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM...]\n";

constexpr const char* kExamples =
    "  ddprun --nproc-per-node=4 ./train --epochs 3   four workers\n"
    "  ddprun --gpus 0,2 ./train                      one on each of two GPUs\n"
    "  ddprun --nproc-per-node=gpu train.py           a Python program\n"
    "  ddprun --max-restarts 3 --tee 3 ./train        again, and with logs\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr host0 ./train  two hosts\n"
    "  ddprun --nproc-per-node=2 --dry-run ./train    what would be started\n"
    "  ddprun --nproc-per-node=8 --doctor             is this machine fit?\n";

constexpr const char* kFooter =
    "An option may have _ for -, be cut short (--nproc=4), and take its "
    "default "
    "from\nthe environment (PET_NPROC_PER_NODE=4). In PROGRAM's arguments "
    "$local_rank and\n${local_rank} are its number and $$ is $. LOGLEVEL "
    "(INFO, "
    "WARNING, ERROR) is for\nddprun's own messages, PYTHON_EXEC the Python of "
    "programs that end in .py.";

/// Documentation of an option.
struct OptionText {
  std::string names;  ///< "-r, --redirects"
  std::string type;   ///< type of its value; empty: none
  std::string help;
};

/// Options under one title.
struct OptionGroup {
  std::string title;
  std::vector<OptionText> options;
};

/// Returns the manual page ddprun(1), in roff. Pure function.
std::string man_page(const std::vector<OptionGroup>& groups);

}  // namespace launcher
