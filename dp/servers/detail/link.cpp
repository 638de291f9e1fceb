#include "dp/servers/detail/link.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "ddp/base/block_signals.h"
#include "ddp/job/error_text.h"
#include "dp/base/thread_error.h"

namespace dp::detail {
namespace {

using std::chrono::milliseconds;

constexpr int kTag = 0;
constexpr int kGuardTag = 1;
constexpr auto kForEver = std::chrono::hours(24 * 365);

constexpr const char* kGivenUp = "the connection was given up";

/// Returns true if a send on an ended connection has completed.
bool was_sent(const c10::intrusive_ptr<c10d::Work>& work) {
  try {
    return work->wait(milliseconds(1));
  } catch (const std::exception&) {
    return false;
  }
}

/// Removes the source location with which Gloo prefixes its errors, and all
/// lines after the first.
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
    : group_(std::move(group)),
      peer_(std::move(peer)),
      timeout_(timeout),
      nothing_(at::empty({1}, at::kByte)) {
  start_guard();
}

Link::~Link() {
  abort();
  guard_->abort();
  waits_.join();
}

// Gloo reports the end of a connection to pending receives but not to pending
// sends, which would wait for their whole time-out. A guard thread therefore
// waits on a receive and aborts the sends.
void Link::start_guard() {
  std::vector<at::Tensor> tensors{nothing_};
  guarded([&] {
    guard_ = group_->recv(tensors, 1 - group_->getRank(), kGuardTag);
  });
  try {
    waits_ = std::thread([this] {
      ddp::detail::block_signals();
      await_end();
    });
  } catch (const std::system_error& error) {
    TORCH_CHECK(false, thread_error("the connection with " + peer_, error));
  }
}

void Link::await_end() {
  try {
    guard_->wait(kForEver);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    lost_ = reason(ddp::detail::text_of(error));
    for (const auto& work : sending_) {
      work->abort();
    }
  }
}

void Link::post(const Message& message, const at::Tensor& payload) {
  post_tensor(encode_header(message));
  if (!message.text.empty()) {
    post_tensor(encode_text(message.text));
  }
  if (!message.numbers.empty()) {
    post_tensor(at::tensor(message.numbers));
  }
  for (const auto& piece : pieces_of(payload)) {
    post_tensor(piece);
  }
}

void Link::flush(milliseconds timeout) {
  for (const auto& work : std::exchange(posted_, {})) {
    guarded([&] { finish_send(work, timeout); });
  }
}

Message Link::receive() {
  const auto bytes = empty_header();
  receive_tensor(bytes);
  Header header;
  try {
    header = decode_header(bytes);
  } catch (const c10::Error& error) {
    throw LinkError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                    peer_ + ": " + ddp::detail::text_of(error));
  }
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
  for (const auto& piece : pieces_of(payload)) {
    receive_tensor(piece);
  }
}

void Link::refuse(const std::string& what) const {
  throw LinkError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                  "Expected " + peer_ + " to keep to the protocol, but got " +
                      what + "; run the same build on all ranks");
}

void Link::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (auto* running : {&sending_, &receiving_}) {
    for (const auto& work : *running) {
      work->abort();
    }
    running->clear();
  }
}

void Link::post_tensor(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  guarded([&] {
    posted_.push_back(
        watch(sending_, group_->send(tensors, 1 - group_->getRank(), kTag)));
  });
}

void Link::receive_tensor(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  guarded([&] {
    const Work work =
        watch(receiving_, group_->recv(tensors, 1 - group_->getRank(), kTag));
    const bool is_done = work->wait(timeout_);
    forget(receiving_, work);
    TORCH_CHECK(is_done, kGivenUp);
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

Link::Work Link::watch(std::vector<Work>& running, Work work) {
  const std::lock_guard lock(mutex_);
  const bool is_vain = &running == &sending_ && !lost_.empty();
  if (is_aborted_ || is_vain) {
    work->abort();
  }
  running.push_back(work);
  return work;
}

void Link::forget(std::vector<Work>& running, const Work& work) {
  const std::lock_guard lock(mutex_);
  running.erase(std::remove(running.begin(), running.end(), work),
                running.end());
}

void Link::finish_send(const Work& work, milliseconds timeout) {
  bool is_done = work->wait(timeout);
  forget(sending_, work);
  const std::lock_guard lock(mutex_);
  if (!is_done && !is_aborted_) {
    // The peer may have received the message before it exited. Otherwise
    // waiting is useless.
    is_done = was_sent(work);
    TORCH_CHECK(is_done, lost_);
  }
  TORCH_CHECK(is_done, kGivenUp);
}

void Link::fail(const std::string& why) const {
  throw LinkError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                  peer_ + " is gone: " + reason(why));
}

}  // namespace dp::detail
