#pragma once

namespace ddp {

/// Whether the training is to save and to end now, because the machine will be
/// taken from it: for `ddprun --on-preempt SIGNAL[:seconds]`, which turns that
/// signal of a scheduler into this answer. True on all ranks after the same
/// backward pass, so that what they save is one checkpoint, also where only one
/// host gets the signal.
///
/// Ask once a step, on every rank, after `backward()`. The first call tells
/// ddprun that this program asks; one that never does gets the signal as it is.
/// So ask once before what takes long at the start.
///
/// Costs a stat() of a file, or, without such a ddprun, nothing. The ranks
/// agree by elements that ride with the gradients of a reduced pass of a
/// `DistributedDataParallel` (or `Reducer`) over `ddp::process_group()`: in the
/// first pass in which all know of the signal, mostly the second after it. So
/// no step communicates more, and none waits for the GPU before the signal has
/// come; then each does. A program whose ranks share no such pass never hears
/// of it here: its ranks agree by a collective of their own on what they read
/// (detail/job_files/stop_file.h).
///
/// In a `Join` a rank without inputs takes part in this, also when it alone is
/// told. Those with inputs leave the loop after the same pass; then all call
/// `Join::finish` as ever, and after it have the same answer.
///
/// One rank, or none of a job: what its file says, else false.
///
/// Example:
/// @code
///   for (const auto& batch : *loader) {
///     train(batch);
///     checkpoint.step(checkpoint.step() + 1);
///     if (ddp::stop_requested()) {
///       checkpoint.epoch(epoch).save("last.pt");
///       break;  // main() destroys the process group and returns 0
///     }
///   }
/// @endcode
bool stop_requested();

}  // namespace ddp
