#include "ddp/job/monitored_backend.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <ATen/DeviceGuard.h>
#include <c10/util/hash.h>

#include "ddp/base/background_task.h"
#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kGoPatience{1'000};
/// NCCL's work that lasts longer counts as work in progress.
constexpr std::chrono::milliseconds kIdlePatience{1'000};
constexpr std::chrono::milliseconds kAbortPatience{10'000};
constexpr std::chrono::milliseconds kReleasePause{10};

using Shared = c10::intrusive_ptr<c10d::Backend>;

/// Reports the start of collectives to ddprun.
void note_collectives(size_t count, bool on_device) {
  auto* progress = progress_file();
  for (size_t i = 0; progress != nullptr && i < count; ++i) {
    progress->note_collective();
  }
  if (progress != nullptr && on_device) {
    progress->wait_on_device();
  }
}

/// Calls `use` on a separate thread and abandons the thread if the call takes
/// longer than `patience`. If no thread can start, calls `use` on this thread.
/// The separate thread also destroys the backend if it holds the last
/// reference. Reason: the destructor of an aborted NCCL backend waits for its
/// watchdog, which may sleep after an error; Gloo's destructor waits for a
/// thread that may sleep for the time-out of a collective; an NCCL abort may
/// take as long.
void use_on_thread(Shared backend,
                   const std::function<void(const Shared&)>& use,
                   std::chrono::milliseconds patience) {
  const auto held = std::make_shared<Shared>(std::move(backend));
  const auto task = [held, use] {
    const auto own = std::move(*held);
    use(own);
  };
  BackgroundTask elsewhere;
  try {
    elsewhere.start(task);
  } catch (const std::system_error&) {
    task();
    return;
  }
  elsewhere.finish(patience);
}

void abort_on_thread(Shared backend, std::chrono::milliseconds patience) {
  use_on_thread(
      std::move(backend), [](const auto& one) { one->abort(); }, patience);
}

/// Destroys the backend once a thread that aborts it has ended.
void release_on_thread(Shared backend, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  use_on_thread(
      std::move(backend),
      [deadline](const auto& one) {
        while (one.use_count() > 1 &&
               std::chrono::steady_clock::now() < deadline) {
          std::this_thread::sleep_for(kReleasePause);
        }
      },
      patience);
}

}  // namespace

MonitoredBackend::MonitoredBackend(c10::intrusive_ptr<c10d::Backend> backend,
                                   GroupMembers members,
                                   std::chrono::milliseconds timeout,
                                   std::shared_ptr<PeerState> record,
                                   std::chrono::milliseconds connect_timeout)
    : Backend(backend->getRank(), backend->getSize()),
      backend_(std::move(backend)),
      members_(std::move(members)),
      name_(backend_->getBackendName()),
      record_(std::move(record)),
      connect_timeout_(connect_timeout),
      timeout_(timeout) {}

std::shared_ptr<const AveragedPass> MonitoredBackend::begin_pass(
    const AveragedPass& pass) {
  const std::lock_guard lock(pass_mutex_);
  auto running = pass_.lock();
  if (!running) {
    running = std::make_shared<const AveragedPass>(pass);
    pass_ = running;
    return running;
  }
  const bool is_other_thread = running->thread && pass.thread &&
                               *running->thread != *pass.thread &&
                               running->graph_task != pass.graph_task;
  TORCH_CHECK(!is_other_thread,
              "Expected one thread to make the backward passes of all models "
              "over group ",
              members_.name,
              ", but got a pass while that of another thread is averaged: the "
              "gradients of two models could be added up; give each thread a "
              "group of its own (ddp::new_group)");
  return running;
}

bool MonitoredBackend::has_open_pass() {
  const std::lock_guard lock(pass_mutex_);
  return !pass_.expired();
}

/// A rank that has left a group has left its siblings, too, which have the name
/// of the group and a purpose.
std::optional<Departure> MonitoredBackend::departed_member(
    std::chrono::milliseconds timeout) const {
  if (record_->departures() == 0 && timeout.count() == 0) {
    return std::nullopt;
  }
  const auto& name = members_.name;
  return record_->first_departure(
      members_.ranks, timeout, name.substr(0, name.find('.')));
}

void MonitoredBackend::begin_wait(const c10d::Work* work,
                                  const std::string& operation) {
  const std::lock_guard lock(activity_mutex_);
  uint64_t number = started_;
  for (uint64_t back = 0; work != nullptr && back < starts_.size(); ++back) {
    if (back < started_ &&
        starts_[(started_ - back) % starts_.size()].work == work) {
      number = started_ - back;
      break;
    }
  }
  waits_.push_back({number,
                    "",
                    operation,
                    std::chrono::steady_clock::now(),
                    std::this_thread::get_id()});
}

void MonitoredBackend::end_wait() {
  const std::lock_guard lock(activity_mutex_);
  const auto last =
      std::find_if(waits_.rbegin(), waits_.rend(), [](const auto& wait) {
        return wait.thread == std::this_thread::get_id();
      });
  if (last != waits_.rend()) {
    waited_ = std::max(waited_, last->number);
    waits_.erase(std::next(last).base());
  }
}

GroupActivity MonitoredBackend::progress() const {
  const std::lock_guard lock(activity_mutex_);
  constexpr uint64_t kMostCalls = 512;
  GroupActivity activity{started_, {}, last_thread_, waits_};
  for (uint64_t number =
           std::max(waited_ + kMostCalls, activity.started) - kMostCalls;
       !waits_.empty() && number < activity.started;) {
    activity.calls.push_back(call_of(++number));
  }
  for (auto& wait : activity.waits) {
    wait.call = call_of(wait.number);
    if (wait.operation.find("gradient") != std::string::npos) {
      wait.operation +=
          " in backward pass " + std::to_string(record_->passes());
    }
  }
  return activity;
}

/// The caller holds the mutex.
std::string MonitoredBackend::call_of(uint64_t number) const {
  return number == 0 || number + starts_.size() <= started_
             ? ""
             : starts_[number % starts_.size()].text();
}

CollectiveStart MonitoredBackend::start_of(const Collective& collective) {
  CollectiveStart start;
  start.name = collective.name;
  start.number = collective.number;
  for (const auto& tensor : collective.sized) {
    start.numel += tensor.numel();
    start.dtype = collective.sized.front().scalar_type();
  }
  return start;
}

std::string CollectiveStart::text() const {
  return name + (number < 0 ? "" : " " + std::to_string(number)) +
         (numel == 0
              ? ""
              : " of " + std::to_string(numel) + " " + c10::toString(dtype));
}

size_t CollectiveStart::hash() const {
  return c10::get_hash(
      std::string_view(name), number, numel, static_cast<int>(dtype));
}

bool MonitoredBackend::may_be_working() {
  {
    const std::lock_guard lock(activity_mutex_);
    if (!waits_.empty()) {
      return true;
    }
  }
  const auto backend = open_backend();
  if (!backend || name_ != "nccl") {
    return backend && detail::may_be_working(*backend);
  }
  BackgroundTask task;
  task.start(
      [backend, replay = last_replay()] { wait_for_device(*backend, replay); });
  try {
    return !task.finish(kIdlePatience);
  } catch (const std::exception&) {
    return true;
  }
}

std::string MonitoredBackend::abort_reason() const {
  const std::lock_guard lock(mutex_);
  return abort_reason_;
}

c10::intrusive_ptr<c10d::Backend> MonitoredBackend::open_backend() const {
  const std::lock_guard lock(mutex_);
  return is_open() ? backend_ : nullptr;
}

bool MonitoredBackend::has_failed() const {
  const auto backend = name_ == "nccl" ? open_backend() : nullptr;
  return backend && backend->getError() != c10d::ErrorType::SUCCESS;
}

std::string MonitoredBackend::failure(const std::string& operation) const {
  const bool is_ours = state_ == State::aborted;
  if (const auto reason = abort_reason(); !reason.empty()) {
    return "rank " + std::to_string(world_rank()) + ": " + operation +
           " failed: " + reason;
  }
  if (const auto departure = departed_member(
          is_ours ? std::chrono::milliseconds(0) : kNewsPatience)) {
    return error_of(operation, *departure);
  }
  return "rank " + std::to_string(world_rank()) + ": " + operation +
         " failed: " +
         (is_ours ? "the program has aborted the group"
                  : "NCCL has lost a connection, or a collective took longer "
                    "than the time-out, and LibTorch has aborted the group. "
                    "What was computed since is garbage: start again from a "
                    "checkpoint. LibTorch's log above says more");
}

void MonitoredBackend::check_not_aborted(const std::string& operation) const {
  if (state_ == State::aborted || has_failed()) {
    const auto error = failure(operation);
    record_->mark_reported();
    TORCH_CHECK(false, error);
  }
}

std::string MonitoredBackend::error_of(const std::string& operation,
                                       const Departure& departure) const {
  return "rank " + std::to_string(world_rank()) + ": " + operation +
         " failed: " + describe(departure, record_->passes());
}

void MonitoredBackend::fail(const std::string& operation,
                            const Departure& departure) const {
  record_->mark_reported();
  TORCH_CHECK(false, error_of(operation, departure));
}

void MonitoredBackend::connect(c10::Device device) {
  if (is_connected(device) || !device.is_cuda()) {
    return;
  }
  connect_gpu(backend_, device, connect_timeout_, [this] {
    const auto left = departed_member();
    return left ? describe(*left, record_->passes()) : "";
  });
  const std::lock_guard lock(connected_mutex_);
  connected_.push_back(device);
}

bool MonitoredBackend::is_connected(c10::Device device) const {
  if (!bound_device_id_ || device == *bound_device_id_) {
    return true;
  }
  const std::lock_guard lock(connected_mutex_);
  return std::count(connected_.begin(), connected_.end(), device) > 0;
}

c10d::Backend& MonitoredBackend::for_collective(
    const std::optional<c10::Device>& device) {
  auto& backend = inner();
  check_not_aborted("a collective");
  TORCH_CHECK(
      !device || is_connected(*device),
      "rank ",
      getRank(),
      ": Expected a tensor on ",
      bound_device_id_.value_or(c10::kCPU),
      ", the device of this rank, but got one on ",
      device.value_or(c10::kCPU),
      ". Move it, or the module, there (tensor.to(ddp::local_device())); "
      "ddp::ProcessGroupOptions::device chooses another device for the rank. "
      "The other GPUs of a module on several are connected in the group of its "
      "DistributedDataParallel alone: use that group");
  if (!records_) {
    note_collectives(1, name_ == "nccl");
  }
  check_departures("a collective");
  return backend;
}

void MonitoredBackend::check_departures(const char* operation) const {
  if (const auto departure = departed_member()) {
    fail(operation, *departure);
  }
}

void MonitoredBackend::begin_recording() {
  const std::lock_guard lock(activity_mutex_);
  records_ = true;
  recorded_.clear();
}

std::vector<CollectiveStart> MonitoredBackend::end_recording() {
  const std::lock_guard lock(activity_mutex_);
  records_ = false;
  for (auto& start : recorded_) {
    start.work = nullptr;
  }
  return std::exchange(recorded_, {});
}

void MonitoredBackend::before_replay(
    const std::vector<CollectiveStart>& collectives) {
  constexpr const char* kWhat = "a recorded step";
  inner();
  check_not_aborted(kWhat);
  note_collectives(collectives.size(), /*on_device=*/true);
  check_departures(kWhat);
}

void MonitoredBackend::after_replay(
    const std::vector<CollectiveStart>& collectives,
    std::shared_ptr<c10::Event> end) {
  const std::lock_guard lock(activity_mutex_);
  for (const auto& start : collectives) {
    const uint64_t number = ++started_;
    starts_[number % starts_.size()] = start;
  }
  last_thread_ = std::this_thread::get_id();
  replay_ = std::move(end);
}

std::shared_ptr<c10::Event> MonitoredBackend::last_replay() const {
  const std::lock_guard lock(activity_mutex_);
  return replay_;
}

/// The collectives of a graph are not among NCCL's works.
void MonitoredBackend::wait_for_device(
    c10d::Backend& backend, const std::shared_ptr<c10::Event>& replay) {
  if (replay) {
    replay->synchronize();
  }
  backend.waitForPendingWorks();
}

void MonitoredBackend::has_started(CollectiveStart start, const Work& work) {
  start.work = work.get();
  const std::lock_guard lock(activity_mutex_);
  if (records_) {
    recorded_.push_back(start);
    return;
  }
  const uint64_t number = ++started_;
  starts_[number % starts_.size()] = start;
  last_thread_ = std::this_thread::get_id();
}

void MonitoredBackend::abort() {
  abort_because("");
}

void MonitoredBackend::abort_because(const std::string& why) {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::open) {
      return;
    }
    abort_reason_ = why;
    state_ = State::aborted;
    backend = backend_;
  }
  end_actions_.call();
  abort_on_thread(std::move(backend), kGoPatience);
}

void MonitoredBackend::shutdown() {
  close(End::finish);
}

void MonitoredBackend::wait_until_idle() {
  // NCCL's shutdown() waits, too, but holds a lock that its abort() needs.
  const auto backend = name_ == "nccl" ? open_backend() : nullptr;
  if (backend) {
    wait_for_device(*backend, last_replay());
  }
}

void MonitoredBackend::close(End end) noexcept {
  try {
    if (end == End::finish) {
      wait_until_idle();
    }
  } catch (const std::exception& error) {
    TORCH_WARN("rank ", getRank(), " could not end a group: ", error.what());
    end = End::abort;
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  State before = State::closed;
  {
    const std::lock_guard lock(mutex_);
    before = state_.exchange(State::closed);
    if (before == State::closed) {
      return;
    }
    backend = std::move(backend_);
  }
  end_actions_.call();
  try {
    if (before == State::open && end == End::finish) {
      backend->shutdown();
      return;
    }
    if (before == State::open) {
      abort_on_thread(backend, kAbortPatience);
    }
  } catch (const std::exception& error) {
    TORCH_WARN("rank ", getRank(), " could not close a group: ", error.what());
  }
  // An NCCL backend that is destroyed while the process exits ends the process
  // by SIGABRT.
  release_on_thread(std::move(backend),
                    name_ == "nccl" ? kAbortPatience : kGoPatience);
}

void MonitoredBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = at_most_a_year(timeout);
  inner().setTimeout(timeout_);
}

c10d::Backend& MonitoredBackend::inner() const {
  TORCH_CHECK(backend_,
              "Expected a process group, but it has been destroyed; make no "
              "collective after ddp::destroy_process_group(), nor after a "
              "backward pass of this rank has failed");
  return *backend_;
}

c10::intrusive_ptr<c10d::Backend::Options>
MonitoredBackend::getBackendOptions() {
  return inner().getBackendOptions();
}

bool MonitoredBackend::supportsCoalescing() const {
  return inner().supportsCoalescing();
}

void MonitoredBackend::startCoalescing() {
  inner().startCoalescing();
}

MonitoredBackend::Work MonitoredBackend::endCoalescing() {
  return inner().endCoalescing();
}

template <class Call>
MonitoredBackend::Work MonitoredBackend::start(const Collective& collective,
                                               const Call& call) {
  auto& backend = for_collective(collective.device);
  const auto start = start_of(collective);
  tag_next_collective(backend, start.hash(), started_ + 1);
  auto work = call(backend);
  has_started(start, work);
  return work;
}

MonitoredBackend::Work MonitoredBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start(
      {"broadcast from rank",
       at::device_of(tensors),
       tensors,
       options.rootRank},
      [&](auto& backend) { return backend.broadcast(tensors, options); });
}

MonitoredBackend::Work MonitoredBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start(
      {"allreduce", at::device_of(tensors), tensors},
      [&](auto& backend) { return backend.allreduce(tensors, options); });
}

MonitoredBackend::Work MonitoredBackend::reduce(
    Tensors& tensors, const c10d::ReduceOptions& options) {
  return start(
      {"reduce to rank", at::device_of(tensors), tensors, options.rootRank},
      [&](auto& backend) { return backend.reduce(tensors, options); });
}

MonitoredBackend::Work MonitoredBackend::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return start({"allgather", at::device_of(inputs), inputs},
               [&](auto& backend) {
                 return backend.allgather(outputs, inputs, options);
               });
}

MonitoredBackend::Work MonitoredBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return start({"allgather_base", at::device_of(input), input},
               [&](auto& backend) {
                 return backend._allgather_base(output, input, options);
               });
}

MonitoredBackend::Work MonitoredBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return start(
      {"gather to rank", at::device_of(inputs), inputs, options.rootRank},
      [&](auto& backend) { return backend.gather(outputs, inputs, options); });
}

MonitoredBackend::Work MonitoredBackend::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& options) {
  return start(
      {"scatter from rank", at::device_of(outputs), outputs, options.rootRank},
      [&](auto& backend) { return backend.scatter(outputs, inputs, options); });
}

MonitoredBackend::Work MonitoredBackend::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& options) {
  return start({"reduce_scatter", at::device_of(outputs)}, [&](auto& backend) {
    return backend.reduce_scatter(outputs, inputs, options);
  });
}

MonitoredBackend::Work MonitoredBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return start({"reduce_scatter_base", at::device_of(input), input},
               [&](auto& backend) {
                 return backend._reduce_scatter_base(output, input, options);
               });
}

MonitoredBackend::Work MonitoredBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  const bool is_even = output_sizes.empty() && input_sizes.empty();
  return start({"alltoall_base",
                at::device_of(input),
                is_even ? at::TensorList(input) : at::TensorList()},
               [&](auto& backend) {
                 return backend.alltoall_base(
                     output, input, output_sizes, input_sizes, options);
               });
}

MonitoredBackend::Work MonitoredBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return start({"alltoall", at::device_of(inputs)}, [&](auto& backend) {
    return backend.alltoall(outputs, inputs, options);
  });
}

MonitoredBackend::Work MonitoredBackend::barrier(
    const c10d::BarrierOptions& options) {
  auto bound = options;
  if (bound_device_id_ && bound.device_ids.empty()) {
    bound.device_ids = {bound_device_id_->index()};
  }
  return start({"barrier", bound.device},
               [&](auto& backend) { return backend.barrier(bound); });
}

/// Gloo throws at once if it knows that the peer has closed the connection.
template <class Call>
MonitoredBackend::Work MonitoredBackend::start_message(const Call& call) {
  constexpr const char* kWhat = "a message";
  check_not_aborted(kWhat);
  if (auto* progress = progress_file()) {
    progress->beat();
  }
  try {
    return call(inner());
  } catch (const std::runtime_error& error) {
    fail_collective(*this, kWhat, error.what());
  }
}

MonitoredBackend::Work MonitoredBackend::send(Tensors& tensors,
                                              int to,
                                              int tag) {
  return start_message(
      [&](auto& backend) { return backend.send(tensors, to, tag); });
}

MonitoredBackend::Work MonitoredBackend::recv(Tensors& tensors,
                                              int from,
                                              int tag) {
  return start_message(
      [&](auto& backend) { return backend.recv(tensors, from, tag); });
}

MonitoredBackend::Work MonitoredBackend::recvAnysource(Tensors& tensors,
                                                       int tag) {
  return start_message(
      [&](auto& backend) { return backend.recvAnysource(tensors, tag); });
}

const MonitoredBackend* monitored_backend_of(const c10d::Backend& group) {
  return dynamic_cast<const MonitoredBackend*>(&group);
}

MonitoredBackend* monitored_backend_of(c10d::Backend& group) {
  return dynamic_cast<MonitoredBackend*>(&group);
}

void abort_and_announce(c10d::Backend& group, const std::string& why) {
  auto* job = monitored_backend_of(group);
  if (job != nullptr && job->is_open() && !job->departed_member()) {
    report_fatal_error(why, job->members().name);
    job->close(MonitoredBackend::End::abort);
    job->record()->mark_reported();
  }
}

std::shared_ptr<PeerState> peer_state_of(const c10d::Backend& group) {
  const auto* job = monitored_backend_of(group);
  return job != nullptr ? job->record() : std::make_shared<PeerState>();
}

}  // namespace ddp::detail
