#include "ddp/exchanges/hook_exchange.h"

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "ddp/job/process_group.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

template <typename Action>
void wait_for_hook(const std::string& what,
                   const Action& action,
                   const c10d::Work* work = nullptr) {
  try {
    if (is_initialized()) {
      const detail::GroupWaitScope waits(*process_group(), what, work);
      action();
    } else {
      action();
    }
  } catch (...) {
    const auto why =
        detail::first_line(detail::text_of(std::current_exception()));
    if (is_initialized()) {
      detail::check_nobody_left(*process_group(), what);
    }
    TORCH_CHECK(false, "Expected ", what, " to succeed, but got: ", why);
  }
}

/// Waits for the future, and throws if the job's group is aborted meanwhile:
/// the future of an aborted collective may never complete.
void wait_for(c10::ivalue::Future& future, const std::string& what) {
  const auto promise = std::make_shared<std::promise<void>>();
  future.addCallback([promise](const auto&) { promise->set_value(); },
                     /*uses_future=*/false);
  const auto ended = promise->get_future();
  while (ended.wait_for(kPollInterval) == std::future_status::timeout) {
    if (is_initialized()) {
      detail::check_not_aborted(*process_group(), what);
    }
  }
  future.waitAndThrow();
}

/// Waits for the result of a hook, and copies its tensor into the payload
/// unless it is the payload.
class HookResultReader {
 public:
  explicit HookResultReader(const GradientBucket& bucket) : bucket_(bucket) {}

  void operator()(const HookExchange::Work& work) const {
    const auto what = name("work");
    TORCH_CHECK(work != nullptr, "Expected ", what, ", but got null");
    wait_for_hook(
        what, [&] { work->wait(); }, work.get());
  }

  void operator()(const HookExchange::Future& future) const {
    const auto what = name("future");
    TORCH_CHECK(future != nullptr, "Expected ", what, ", but got null");
    wait_for_hook(what, [&] { wait_for(*future, what); });
    const auto value = future->value();
    if (value.isTensor()) {
      take(value.toTensor());
      return;
    }
    TORCH_CHECK(value.isTensorList() && value.toTensorVector().size() == 1,
                "Expected ",
                what,
                " to hold a tensor or a list of one, but got ",
                value.isTensorList()
                    ? std::to_string(value.toTensorVector().size()) + " tensors"
                    : value.tagKind());
    take(value.toTensorVector()[0]);
  }

  void operator()(const at::Tensor& tensor) const { take(tensor); }

 private:
  std::string name(const char* kind) const {
    return std::string("a ") + kind + " of the hook for " + bucket_.text();
  }

  void take(const at::Tensor& tensor) const {
    const at::Tensor& payload = bucket_.payload;
    TORCH_CHECK(tensor.defined(),
                "Expected ",
                name("tensor"),
                ", but got an undefined one");
    TORCH_CHECK(tensor.sizes() == payload.sizes() &&
                    tensor.scalar_type() == payload.scalar_type() &&
                    tensor.device() == payload.device() &&
                    tensor.layout() == payload.layout(),
                "Expected ",
                name("tensor"),
                " like its payload, ",
                text(payload),
                ", but got ",
                text(tensor));
    if (!tensor.is_same(payload)) {
      payload.copy_(tensor);
      // A hook on another stream may have made it.
      detail::record_stream(tensor);
    }
  }

  static std::string text(const at::Tensor& tensor) {
    return c10::str(tensor.sizes(),
                    " of ",
                    tensor.scalar_type(),
                    tensor.is_sparse() ? ", sparse," : "",
                    " on ",
                    tensor.device());
  }

  const GradientBucket& bucket_;
};

}  // namespace

HookExchange::HookExchange(Hook hook) : hook_(std::move(hook)) {
  TORCH_CHECK(hook_ != nullptr, "Expected a function as hook, but got none");
}

double HookExchange::scale(int /*ranks*/) const {
  return 1;
}

std::string HookExchange::refuses_sparse() const {
  return "";
}

void HookExchange::start(const GradientBucket& bucket) {
  results_.resize(bucket.count);
  results_[bucket.index] = hook_(bucket);
}

void HookExchange::finish(const GradientBucket& bucket) {
  const auto result = std::exchange(results_[bucket.index], Work());
  std::visit(HookResultReader(bucket), result);
}

}  // namespace ddp
