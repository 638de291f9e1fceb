#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

// What a worker writes into the file that DDPRUN_STACK_FILE names, so that
// `ddprun --hang-timeout` can show where it is when it hangs, also where no
// debugger is. Includes no LibTorch: ddprun reads it.
//
// The first line is the number of a signal that the worker catches. When it
// hangs, it gets the signal once and adds its stacks to the file, in any form.
// So any program can offer them:
//
//   stacks = open(os.environ["DDPRUN_STACK_FILE"], "w")
//   print(int(signal.SIGUSR2), file=stacks, flush=True)
//   faulthandler.register(signal.SIGUSR2, file=stacks)
//
//   trap 'echo "copying $file" >> "$DDPRUN_STACK_FILE"' USR2
//   echo 12 > "$DDPRUN_STACK_FILE"
//
// They end with a line "end", or where nothing has come for half a second. Of
// long ones some is shown. The signal goes to the process that reports
// progress (progress_text.h), if it catches that signal then.
namespace ddp::detail {

inline constexpr size_t kMostStackBytes = 64 * 1024;
inline constexpr std::string_view kStackEnd = "end\n";

/// Pure: the signal that the first line of such a file names; nothing where it
/// is no number of one, or not yet whole.
std::optional<int> offered_signal(std::string_view file);

/// Pure: stacks that end with their last line.
bool is_whole_stack(std::string_view written);

}  // namespace ddp::detail
