#pragma once

// The words of ddprun --help around its options.
namespace launcher {

constexpr const char* kDescription =
    "Starts one worker process per GPU or CPU slot of this host and gives each "
    "its rank.\nA worker's whole lines appear with [rank] before them. When "
    "one "
    "fails, the others are stopped\nand ddprun ends with its exit code, or 128 "
    "+ the signal that ended it.";

constexpr const char* kUsage =
    "\nUsage:\n  ddprun [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM...]\n"
    "  ddprun --nproc-per-node=4 ./train --epochs 3\n"
    "  ddprun --gpus 0,2 ./train\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr host0 ./train   "
    "(and --node-rank 1 on the other)\n";

constexpr const char* kFooter =
    "Every option may be spelt with _ for -, and takes its default from the "
    "environment:\nPET_NPROC_PER_NODE=4 stands for --nproc-per-node=4. "
    "LOGLEVEL "
    "(INFO, WARNING, ERROR)\nchooses ddprun's own messages, PYTHON_EXEC the "
    "Python of programs that end in .py.";

}  // namespace launcher
