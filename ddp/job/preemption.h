#pragma once

namespace ddp {

/// Returns true if the training must save and end now, because the machine will
/// be taken away. With `ddprun --on-preempt SIGNAL[:seconds]` the answer
/// becomes true after this signal of a scheduler, on all ranks after the same
/// backward pass, so that all ranks save the same checkpoint, even if only one
/// host gets the signal: the job's control channel tells all ranks.
///
/// Call it once per step, on every rank, after `backward()`. Further calls do
/// no harm: between two reduced passes all ranks get the same answer. The first
/// call informs ddprun that this program polls; a program that never calls it
/// gets the signal itself. So make one call before any slow start-up work. That
/// call also makes this process ignore the signal, unless the program has a
/// handler for it or the signal is SIGTERM, SIGINT, SIGHUP or SIGQUIT.
///
/// Cost: a stat() of a file; without this ddprun option nothing. The ranks
/// agree in their reduced passes. A reduced pass is a backward pass in which a
/// `DistributedDataParallel` (or `Reducer`) over `ddp::process_group()`
/// averages gradients. Each rank sends its vote in it, in a few elements beside
/// the gradients, so no step makes additional collectives. The answer becomes
/// true after the first reduced pass in which all ranks know of the signal,
/// mostly the second one after it, and stays true. Steps before the signal do
/// not wait for the GPU; steps after it do. Without reduced passes this
/// function never returns true: the ranks must then agree on their stop files
/// by a collective of their own. The stop file of a rank is
/// $DDPRUN_JOB_DIR/stop_$RANK; a stop is requested once the file has content.
///
/// In a `Join`, a rank without inputs takes part, also if it alone gets the
/// signal. The ranks with inputs leave the loop after the same pass. Then all
/// ranks call `Join::finish` as usual and get the same answer after it.
///
/// In a world of one, or without a process group: returns the answer of the
/// stop file, or false without one.
///
/// Throws nothing.
/// Thread contract: any thread, but none while `init_process_group` or
/// `destroy_process_group` runs.
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
