#include "dp/detail/parameter_server/parts/part_senders.h"

#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/detail/block_signals.h"
#include "dp/detail/parameter_server/conversation.h"
#include "dp/detail/thread_error.h"

namespace dp::detail {

PartSenders::PartSenders(const Links& links)
    : links_(links), parts_(links.size()) {
  try {
    for (size_t server = 0; server < links.size(); ++server) {
      threads_.emplace_back([this, server] { run(server); });
    }
  } catch (const std::system_error& error) {
    end(End::drop);
    TORCH_CHECK(false, thread_error("a push in backward", error));
  }
}

PartSenders::~PartSenders() {
  if (!threads_.empty()) {
    for (const auto& link : links_) {
      link->abort();
    }
    end(End::drop);
  }
}

void PartSenders::send(size_t server,
                       size_t parameter,
                       const Packet& gradient) {
  const std::lock_guard lock(mutex_);
  parts_[server].push_back(
      {static_cast<int64_t>(parameter), gradient.flat(), gradient.bytes()});
  changed_.notify_all();
}

void PartSenders::finish(const std::vector<Packet>& rest, double loss) {
  {
    const std::lock_guard lock(mutex_);
    rest_ = &rest;
    loss_ = loss;
  }
  end(End::push);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void PartSenders::cancel() {
  end(End::drop);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void PartSenders::end(End how) {
  {
    const std::lock_guard lock(mutex_);
    end_ = how;
    changed_.notify_all();
  }
  for (auto& thread : std::exchange(threads_, {})) {
    thread.join();
  }
}

void PartSenders::run(size_t server) {
  ddp::detail::block_signals();
  try {
    converse(server);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = failure_ ? failure_ : std::current_exception();
    return;
  }
  const std::lock_guard lock(done_mutex_);
  done_.push_back(server);
}

void PartSenders::converse(size_t server) {
  Link& link = *links_[server];
  const OnWait on_wait = [this] { show_life(); };
  for (Part part; next(server, part);) {
    send_gradients(link,
                   server,
                   {.op = Op::part, .numbers = {part.parameter}},
                   part.gradient,
                   on_wait);
    sent_bytes_ += part.bytes;
  }
  if (end_ == End::push) {
    const auto& rest = (*rest_)[server];
    send_gradients(link,
                   server,
                   {.op = Op::push, .loss = loss_, .numbers = rest.contents()},
                   rest.flat(),
                   on_wait);
  } else {
    // At once, also without a part: other workers may wait for it here while
    // this one still waits for room at another server.
    link.send({.op = Op::drop});
  }
}

bool PartSenders::next(size_t server, Part& part) {
  std::unique_lock lock(mutex_);
  auto& parts = parts_[server];
  changed_.wait(lock, [&] { return end_ != End::none || !parts.empty(); });
  if (end_ == End::drop || parts.empty()) {
    return false;
  }
  part = std::move(parts.front());
  parts.pop_front();
  return true;
}

void PartSenders::show_life() {
  const std::lock_guard lock(done_mutex_);
  for (const size_t server : done_) {
    links_[server]->send({.op = Op::wait});
  }
}

}  // namespace dp::detail
