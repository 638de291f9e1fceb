#include "dp/servers/detail/serve_workers.h"

#include <atomic>
#include <system_error>
#include <thread>

#include <c10/util/StringUtil.h>

#include "ddp/base/block_signals.h"
#include "ddp/job/error_text.h"
#include "dp/base/thread_error.h"
#include "dp/servers/detail/interval.h"
#include "dp/servers/detail/protocol_state.h"

namespace dp::detail {
namespace {

using std::chrono::milliseconds;

/// Calls `attempt` until it returns a value and returns that value. Sends the
/// worker a sign of life after each call that returned std::nullopt.
template <class Attempt>
auto wait_for(Link& link, const Attempt& attempt) {
  auto result = attempt();
  for (; !result; result = attempt()) {
    link.send({.op = Op::wait});
  }
  return *result;
}

/// Sends all pieces of the parameters to the worker.
/// @param take  returns the version of the parameters, or std::nullopt if they
///   are not available yet.
template <class Take>
void send_parameters(Link& link,
                     Coordinator& coordinator,
                     milliseconds patience,
                     const Take& take) {
  const int64_t version = wait_for(link, take);
  int64_t begin = 0;
  do {
    const auto piece =
        wait_for(link, [&] { return coordinator.piece(begin, patience); });
    link.send({.op = Op::parameters, .version = version}, piece);
    begin += piece.numel();
  } while (begin < coordinator.flat_bytes());
}

void receive_gradients(Link& link,
                       Coordinator& coordinator,
                       int worker,
                       const Message& push,
                       milliseconds patience) {
  const auto problem =
      presence_problem(push.numbers, coordinator.parameters().size());
  if (!problem.empty()) {
    link.refuse(problem);
  }
  const auto memory =
      wait_for(link, [&] { return coordinator.memory_for(worker, patience); });
  Interval sign_of_life(patience);
  for (const auto& piece : pieces_of(memory)) {
    link.receive_payload(piece);
    if (sign_of_life.has_passed()) {
      link.send({.op = Op::wait});
    }
  }
  coordinator.push(worker, push.numbers, push.loss);
  link.send({.op = Op::received});
}

/// Serves a worker's requests until the worker has finished or reports a
/// failure.
void serve_requests(Link& link,
                    Coordinator& coordinator,
                    int worker,
                    milliseconds patience) {
  ProtocolState state;
  for (;;) {
    const Message request = link.receive();
    const auto problem = state.accept(request.op);
    if (!problem.empty()) {
      link.refuse(problem);
    }
    switch (request.op) {
      case Op::push:
        receive_gradients(link, coordinator, worker, request, patience);
        break;
      case Op::drop:
        coordinator.drop(worker);
        break;
      case Op::pull:
        coordinator.ask(worker);
        send_parameters(link, coordinator, patience, [&] {
          return coordinator.take(worker, patience);
        });
        break;
      case Op::leave:
        coordinator.leave(worker);
        break;
      case Op::last:
        send_parameters(link, coordinator, patience, [&] {
          return coordinator.acquire_final(patience);
        });
        return;
      case Op::failure:
        coordinator.fail(request.text);
        return;
      case Op::wait:
      case Op::parameters:  // refused
      case Op::received:
        break;
    }
  }
}

/// Serves a worker. Returns why the worker is lost, or "" if it has finished or
/// has been told how the job ended.
std::string serve_until_lost(Link& link,
                             Coordinator& coordinator,
                             int worker,
                             milliseconds patience) {
  try {
    try {
      serve_requests(link, coordinator, worker, patience);
      return "";
    } catch (const LinkError&) {
      throw;
    } catch (const JobEnded&) {
    } catch (const std::exception& error) {
      // An error of the server itself, for example out of memory.
      coordinator.fail(ddp::detail::text_of(error));
    }
    link.send({.op = Op::failure, .text = coordinator.failure()});
  } catch (const LinkError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void serve_worker(std::unique_ptr<Link>& link,
                  Coordinator& coordinator,
                  int worker,
                  milliseconds patience) {
  const std::string reason =
      serve_until_lost(*link, coordinator, worker, patience);
  if (!reason.empty()) {
    link.reset();  // a worker that is still alive detects this at once
    coordinator.lose(worker, reason);
  }
}

}  // namespace

void serve_workers(std::vector<std::unique_ptr<Link>>& links,
                   Coordinator& coordinator,
                   milliseconds patience) {
  const auto serve_one = [&](size_t i) {
    serve_worker(links[i], coordinator, static_cast<int>(i), patience);
  };
  std::atomic<size_t> served{0};
  std::vector<std::thread> threads;
  threads.reserve(links.size());
  try {
    while (threads.size() < links.size()) {
      threads.emplace_back([&, worker = threads.size()] {
        ddp::detail::block_signals();
        serve_one(worker);
        if (++served == links.size()) {
          coordinator.close();
        }
      });
    }
  } catch (const std::system_error& error) {
    coordinator.fail(thread_error(
        c10::str("worker ", threads.size(), " of ", links.size()), error));
  }
  coordinator.run();
  // Workers without a thread are informed here why the job has ended.
  for (size_t i = threads.size(); i < links.size(); ++i) {
    serve_one(i);
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

}  // namespace dp::detail
