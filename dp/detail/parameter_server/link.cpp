#include "dp/detail/parameter_server/link.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "ddp/detail/explain.h"
#include "ddp/detail/job_files/error_text.h"

namespace dp::detail {
namespace {

using std::chrono::milliseconds;

constexpr int kTag = 0;

/// Gloo puts the place in its sources before an error.
std::string reason(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  const auto place = line.find("] ");
  return !line.empty() && line.front() == '[' && place != std::string::npos
             ? line.substr(place + 2)
             : line;
}

}  // namespace

Link::Link(c10::intrusive_ptr<c10d::Backend> group,
           std::string peer,
           milliseconds timeout)
    : group_(std::move(group)), peer_(std::move(peer)), timeout_(timeout) {}

Link::~Link() {
  abort();
}

void Link::post(const Message& message, const at::Tensor& payload) {
  post_tensor(encode_header(message));
  if (!message.text.empty()) {
    post_tensor(encode_text(message.text));
  }
  if (!message.numbers.empty()) {
    post_tensor(at::tensor(message.numbers));
  }
  post_payload(payload);
}

void Link::send_payload(const at::Tensor& payload) {
  post_payload(payload);
  flush();
}

void Link::flush(milliseconds timeout) {
  for (const auto& work : std::exchange(posted_, {})) {
    guarded([&] { finish(work, timeout); });
  }
}

Message Link::receive() {
  const auto bytes = empty_header();
  receive_tensor(bytes);
  Header header =
      ddp::detail::explain(peer_, [&] { return decode_header(bytes); });
  if (header.text_bytes > 0) {
    const auto text = at::empty({header.text_bytes}, at::kByte);
    receive_tensor(text);
    header.message.text = decode_text(text);
  }
  if (header.numbers > 0) {
    const auto numbers = at::empty({header.numbers}, at::kLong);
    receive_tensor(numbers);
    const auto* first = numbers.const_data_ptr<int64_t>();
    header.message.numbers.assign(first, first + header.numbers);
  }
  return std::move(header.message);
}

void Link::receive_payload(const at::Tensor& payload) {
  if (payload.numel() > 0) {
    receive_tensor(payload);
  }
}

void Link::refuse(const std::string& what) const {
  TORCH_CHECK(false,
              "Expected ",
              peer_,
              " to keep to the protocol, but got ",
              what,
              "; run the same build on all ranks");
}

void Link::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (const auto& work : running_) {
    work->abort();
  }
  running_.clear();
}

void Link::post_payload(const at::Tensor& payload) {
  if (payload.defined() && payload.numel() > 0) {
    post_tensor(payload);
  }
}

void Link::post_tensor(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  guarded([&] {
    posted_.push_back(
        watch(group_->send(tensors, 1 - group_->getRank(), kTag)));
  });
}

void Link::receive_tensor(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  guarded([&] {
    finish(watch(group_->recv(tensors, 1 - group_->getRank(), kTag)), timeout_);
  });
}

template <class Run>
void Link::guarded(const Run& run) const {
  try {
    run();
  } catch (const std::exception& error) {
    fail(ddp::detail::text_of(error));
  }
}

Link::Work Link::watch(Work work) {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) {
    work->abort();
  }
  running_.push_back(work);
  return work;
}

void Link::finish(const Work& work, milliseconds timeout) {
  const bool is_done = work->wait(timeout);
  {
    const std::lock_guard lock(mutex_);
    running_.erase(std::remove(running_.begin(), running_.end(), work),
                   running_.end());
  }
  TORCH_CHECK(is_done, "the connection was given up");
}

void Link::fail(const std::string& why) const {
  TORCH_CHECK(false, peer_, " is gone: ", reason(why));
}

}  // namespace dp::detail
