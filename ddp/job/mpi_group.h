#pragma once

// Compiled with the program's own mpi.h. No library of this project links MPI.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/backends.h"
#include "ddp/job/rendezvous.h"
#include "ddp/job/text_collectives.h"

namespace ddp {
namespace detail {

/// @throws c10::Error with MPI's text unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    std::string text(MPI_MAX_ERROR_STRING, '\0');
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    text.resize(static_cast<size_t>(length));
    TORCH_CHECK(false, call, " failed: ", text);
  }
}

/// The collectives of MPI as a backend for CPU tensors. Each call has completed
/// when it returns, because most MPI libraries make progress only inside of a
/// call.
class MpiBackend : public c10d::Backend {
 public:
  /// @param comm  a communicator of its own, which the backend frees.
  MpiBackend(MPI_Comm comm, int rank, int size)
      : Backend(rank, size), comm_(comm) {
    check_mpi(MPI_Query_thread(&level_), "MPI_Query_thread");
  }

  ~MpiBackend() override {
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (is_over != 0) {
      TORCH_WARN("Expected the groups of ddp::mpi_group to be released before ",
                 "MPI_Finalize(), but got one that is released afterwards");
    } else if (may_call()) {
      MPI_Comm_free(&comm_);
    }
  }

  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    const auto lock = enter("all-reduce");
    const at::NoGradGuard no_grad;
    for (auto& tensor : tensors) {
      const at::Tensor flat = contiguous(tensor, reduced_type(tensor));
      reduce_in_place(flat.is_complex() ? at::view_as_real(flat) : flat,
                      operation_for(tensor, options.reduceOp));
      copy_back(tensor, flat);
    }
    return done(tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    const auto lock = enter("broadcast");
    const at::NoGradGuard no_grad;
    for (auto& tensor : tensors) {
      const at::Tensor flat = contiguous(tensor, tensor.scalar_type());
      for_pieces(flat.nbytes(), [&](size_t first, int count) {
        check_mpi(MPI_Bcast(static_cast<char*>(flat.data_ptr()) + first,
                            count,
                            MPI_BYTE,
                            static_cast<int>(options.rootRank),
                            comm_),
                  "MPI_Bcast");
      });
      copy_back(tensor, flat);
    }
    return done(tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& /*options*/) override {
    return gather_rows("all-gather", inputs.at(0), outputs.at(0));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& /*options*/) override {
    return gather_rows("all-gather",
                       input.reshape({-1}),
                       output.view({getSize(), input.numel()}).unbind());
  }

  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& /*options*/) override {
    return gather_rows(
        "gather",
        inputs.at(0),
        outputs.empty() ? std::vector<at::Tensor>() : outputs[0]);
  }

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& /*options*/) override {
    const auto lock = enter("barrier");
    check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
    return done({});
  }

 private:
  /// Numbers or bytes of one call. MPI counts by int, a gathered piece of all
  /// ranks needs memory, and MPI sums a piece that fits into the cache in less
  /// time.
  static constexpr size_t kPiece = size_t{1} << 20;

  /// Returns whether MPI lets this thread call it.
  bool may_call() const {
    int is_main = 1;
    if (level_ < MPI_THREAD_SERIALIZED) {
      MPI_Is_thread_main(&is_main);
    }
    return is_main != 0;
  }

  std::unique_lock<std::mutex> enter(const char* call) {
    int is_over = 0;
    MPI_Finalized(&is_over);
    TORCH_CHECK(is_over == 0,
                "Expected no ",
                call,
                " over a group of ddp::mpi_group after MPI_Finalize(), but got "
                "one; release models and groups before it");
    TORCH_CHECK(may_call(),
                "Expected the ",
                call,
                " on the thread that has called MPI_Init(), which MPI's level ",
                level_ == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE"
                                            : "MPI_THREAD_FUNNELED",
                " asks for, but got it on another thread; call forward() and "
                "backward() there, or ask MPI_Init_thread() for "
                "MPI_THREAD_SERIALIZED");
    return std::unique_lock(mutex_);
  }

  static at::Tensor contiguous(const at::Tensor& tensor, at::ScalarType type) {
    TORCH_CHECK(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                "Expected a dense CPU tensor for a group of ddp::mpi_group, "
                "but got one with layout ",
                tensor.layout(),
                " on ",
                tensor.device());
    return tensor.to(type).contiguous();
  }

  static c10::intrusive_ptr<c10d::Work> done(std::vector<at::Tensor> tensors) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(std::move(tensors)));
    return c10d::Work::create_from_future(future);
  }

  static void copy_back(at::Tensor& tensor, const at::Tensor& flat) {
    if (!flat.is_alias_of(tensor)) {
      tensor.copy_(flat);
    }
  }

  template <typename Call>
  static void for_pieces(size_t size, const Call& call) {
    for (size_t first = 0; first < size; first += kPiece) {
      call(first, static_cast<int>(std::min(kPiece, size - first)));
    }
  }

  /// Narrow floats are summed in float, integers of any width in 64 bits.
  static at::ScalarType reduced_type(const at::Tensor& tensor) {
    const bool is_integer = at::isIntegralType(tensor.scalar_type(), true);
    return is_integer ? at::kLong : at::toOpMathType(tensor.scalar_type());
  }

  static MPI_Op operation_for(const at::Tensor& tensor,
                              const c10d::ReduceOp& operation) {
    if (operation == c10d::ReduceOp::SUM) {
      return MPI_SUM;
    }
    const bool is_min = operation == c10d::ReduceOp::MIN;
    TORCH_CHECK(
        !tensor.is_complex() && (is_min || operation == c10d::ReduceOp::MAX),
        "Expected SUM, or MIN or MAX of real numbers, over a group of "
        "ddp::mpi_group, but got another operation");
    return is_min ? MPI_MIN : MPI_MAX;
  }

  void reduce_in_place(const at::Tensor& flat, MPI_Op operation) {
    const auto numbers = flat.scalar_type();
    const auto type = numbers == at::kLong    ? MPI_INT64_T
                      : numbers == at::kFloat ? MPI_FLOAT
                                              : MPI_DOUBLE;
    auto* bytes = static_cast<char*>(flat.data_ptr());
    const auto size = static_cast<size_t>(flat.element_size());
    for_pieces(static_cast<size_t>(flat.numel()), [&](size_t first, int count) {
      check_mpi(MPI_Allreduce(MPI_IN_PLACE,
                              bytes + first * size,
                              count,
                              type,
                              operation,
                              comm_),
                "MPI_Allreduce");
    });
  }

  /// Fills `outputs`, one tensor per rank; none: this rank wants none.
  c10::intrusive_ptr<c10d::Work> gather_rows(const char* call,
                                             const at::Tensor& input,
                                             std::vector<at::Tensor> outputs) {
    const auto lock = enter(call);
    const at::NoGradGuard no_grad;
    const at::Tensor bytes =
        contiguous(input, input.scalar_type()).view({-1}).view(at::kByte);
    const at::Tensor all = at::empty({getSize(), bytes.numel()}, at::kByte);
    for_pieces(bytes.nbytes(), [&](size_t first, int count) {
      const at::Tensor piece = at::empty({getSize(), count}, at::kByte);
      check_mpi(MPI_Allgather(bytes.data_ptr<uint8_t>() + first,
                              count,
                              MPI_BYTE,
                              piece.data_ptr(),
                              count,
                              MPI_BYTE,
                              comm_),
                "MPI_Allgather");
      all.narrow(1, static_cast<int64_t>(first), count).copy_(piece);
    });
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      const at::Tensor row = all[static_cast<int64_t>(rank)];
      outputs[rank].copy_(row.view(input.scalar_type()).view(input.sizes()));
    }
    return done(std::move(outputs));
  }

  MPI_Comm comm_;
  int level_ = MPI_THREAD_SINGLE;
  std::mutex mutex_;  ///< one thread at a time, for MPI_THREAD_SERIALIZED
};

/// @throws c10::Error as `mpi_group`.
inline c10::intrusive_ptr<MpiBackend> make_mpi_backend(MPI_Comm comm) {
  int has_begun = 0;
  int is_over = 0;
  MPI_Initialized(&has_begun);
  MPI_Finalized(&is_over);
  TORCH_CHECK(has_begun != 0 && is_over == 0,
              "Expected ddp::mpi_group between MPI_Init() and MPI_Finalize(), "
              "but got it ",
              has_begun == 0 ? "before MPI_Init()" : "after MPI_Finalize()");
  TORCH_CHECK(comm != MPI_COMM_NULL,
              "Expected a communicator for ddp::mpi_group, but got "
              "MPI_COMM_NULL: this rank is no member of it");
  int is_inter = 0;
  check_mpi(MPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter");
  TORCH_CHECK(is_inter == 0,
              "Expected an intra-communicator for ddp::mpi_group, but got an "
              "inter-communicator; MPI_Intercomm_merge() makes one of it");
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  MPI_Comm own = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &own), "MPI_Comm_dup");
  return c10::make_intrusive<MpiBackend>(own, rank, size);
}

inline TextAllGather text_all_gather_over(
    c10::intrusive_ptr<MpiBackend> group) {
  return [group = std::move(group)](const std::string& mine) {
    return all_gather_text(*group, c10::kCPU, mine, "the ranks' connections");
  };
}

}  // namespace detail

/// Returns an all-gather of texts over the ranks of `comm`, for
/// `ProcessGroupOptions::text_all_gather`. Collective over `comm`, which is
/// duplicated. Release the function before MPI_Finalize.
///
/// Thread contract and errors: as `mpi_group`.
inline TextAllGather mpi_text_all_gather(MPI_Comm comm) {
  return detail::text_all_gather_over(detail::make_mpi_backend(comm));
}

/// Makes a group of the ranks of an MPI communicator, for the option
/// `process_group` of the wrapper, the reducer, the exchanges and the samplers,
/// in a program that MPI has started: no `init_process_group`, no MASTER_ADDR.
/// Collective over `comm`, which is duplicated; the program may go on using
/// `comm`.
///
/// - `device` is the CPU: MPI's collectives of CPU tensors, each of which has
///   completed when it returns: all-reduce, broadcast, all-gather, gather
///   and barrier, so a `QuantizedExchange` does not run. Half and BFloat16 are
///   reduced in float, integers in 64 bits.
/// - `device` is a GPU: an NCCL group. The ranks find each other through a
///   store at rank 0; the kernel chooses its port, and `comm` transports it.
///   After an error of NCCL or CUDA LibTorch's watchdog ends the process,
///   unless the program has set TORCH_NCCL_ASYNC_ERROR_HANDLING=2 and the
///   variables beside it in docs/environment.md.
///
/// The group detects neither ranks that leave nor waits that never end. If a
/// rank dies, MPI by default aborts the others. The time-outs of c10d do not
/// apply on the CPU.
///
/// SyncBatchNorm layers need a group of their own
/// (`SyncBatchNormOptions::process_group`), because the order of the layers'
/// collectives among the gradients' collectives may differ between ranks.
///
/// Thread contract: with MPI_THREAD_SINGLE or MPI_THREAD_FUNNELED, the thread
/// that has called MPI_Init makes the group, calls forward and backward of its
/// models and every collective; a collective on another thread throws. With
/// MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE any thread may do so, one at a
/// time. The group makes no thread on the CPU. Release it, with all models that
/// use it, before MPI_Finalize.
///
/// Example:
/// @code
///   int main(int argc, char** argv) {
///     MPI_Init(&argc, &argv);
///     {
///       auto group = ddp::mpi_group(MPI_COMM_WORLD);
///       ddp::DistributedDataParallel model(
///           net, ddp::DistributedDataParallelOptions().process_group(group));
///       train(model);
///     }
///     MPI_Finalize();
///   }
/// @endcode
///
/// @throws c10::Error if MPI is not initialised or has been finalised, `comm`
///   is MPI_COMM_NULL or an inter-communicator, or NCCL cannot connect.
inline c10::intrusive_ptr<c10d::Backend> mpi_group(
    MPI_Comm comm, c10::Device device = c10::Device(c10::kCPU)) {
  auto group = detail::make_mpi_backend(comm);
  if (device.is_cpu()) {
    return group;
  }
  WorkerEnv env;
  env.rank = group->getRank();
  env.world_size = group->getSize();
  detail::BackendSpec spec;
  spec.rank = env.rank;
  spec.size = env.world_size;
  spec.device = device;
  spec.name = "mpi";
  spec.guest = true;
  spec.store =
      detail::open_store_by(detail::text_all_gather_over(std::move(group)),
                            env,
                            spec.connect_timeout);
  return detail::make_nccl_backend(spec);
}

}  // namespace ddp
