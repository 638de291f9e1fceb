#include "dp/detail/parameter_server/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

using std::chrono::milliseconds;

/// op, version, bits of the loss, bytes of the text.
constexpr int64_t kHeaderNumbers = 4;
constexpr int kTag = 0;

at::Tensor encode(const Message& message) {
  auto header = at::zeros({kHeaderNumbers}, at::kLong);
  auto* numbers = header.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(message.op);
  numbers[1] = message.version;
  std::memcpy(&numbers[2], &message.loss, sizeof(message.loss));
  numbers[3] = static_cast<int64_t>(message.text.size());
  return header;
}

at::Tensor to_payload(const std::string& text) {
  auto payload = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), payload.mutable_data_ptr<uint8_t>());
  return payload;
}

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
  post_tensor(encode(message));
  if (!message.text.empty()) {
    post_tensor(to_payload(message.text));
  }
  if (payload.defined()) {
    post_tensor(payload);
  }
}

void Link::flush(milliseconds timeout) {
  for (const auto& work : std::exchange(posted_, {})) {
    guarded([&] { finish(work, timeout); });
  }
}

Message Link::receive() {
  const auto header = at::zeros({kHeaderNumbers}, at::kLong);
  receive_tensor(header);
  const auto* numbers = header.const_data_ptr<int64_t>();
  Message message;
  message.op = static_cast<Op>(numbers[0]);
  message.version = numbers[1];
  std::memcpy(&message.loss, &numbers[2], sizeof(message.loss));
  if (numbers[3] > 0) {
    const auto text = at::empty({numbers[3]}, at::kByte);
    receive_tensor(text);
    const auto* data = text.const_data_ptr<uint8_t>();
    message.text.assign(data, data + numbers[3]);
  }
  return message;
}

void Link::receive_payload(const at::Tensor& payload) {
  receive_tensor(payload);
}

void Link::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (const auto& work : running_) {
    work->abort();
  }
  running_.clear();
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
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
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
