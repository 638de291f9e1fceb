#include "dp/detail/parameter_server/serve_workers.h"

#include <system_error>
#include <thread>

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "dp/detail/thread_error.h"

namespace dp::detail {
namespace {

using std::chrono::milliseconds;

template <class Take>
void answer(Link& link, const Take& take) {
  auto parameters = take();
  for (; !parameters; parameters = take()) {
    link.send({.op = Op::wait});
  }
  link.send({.op = Op::parameters, .version = parameters->version},
            parameters->flat);
}

/// Of a part of a push.
Contents contents_of_part(const Link& link,
                          const Message& part,
                          size_t parameters) {
  if (part.numbers.size() != 1 || part.numbers[0] < 0 ||
      part.numbers[0] >= static_cast<int64_t>(parameters)) {
    link.refuse("a gradient of no parameter");
  }
  Contents contents(parameters, kKept);
  contents[static_cast<size_t>(part.numbers[0])] = kWhole;
  return contents;
}

void receive_gradients(Link& link,
                       Coordinator& coordinator,
                       int worker,
                       const Contents& contents,
                       milliseconds patience) {
  const auto problem = contents_problem(coordinator.parameters(), contents);
  if (!problem.empty()) {
    link.refuse(problem);
  }
  const auto lend = [&] {
    return coordinator.lend(worker, contents, patience);
  };
  auto memory = lend();
  for (; !memory; memory = lend()) {
    link.send({.op = Op::wait});
  }
  link.send({.op = Op::go});
  link.receive_payload(*memory);
}

/// Which rows a worker wants: none says all of all parameters.
Rows receive_rows(Link& link,
                  const std::vector<at::Tensor>& parameters,
                  const Message& pull) {
  Rows rows(parameters.size());
  if (pull.numbers.empty()) {
    return rows;
  }
  const auto problem = contents_problem(parameters, pull.numbers);
  if (!problem.empty()) {
    link.refuse(problem);
  }
  const auto numbers = at::empty({row_count(pull.numbers)}, at::kLong);
  link.receive_payload(numbers);
  rows = split_rows(numbers, pull.numbers);
  check_rows(rows, parameters);
  return rows;
}

/// Until the worker has finished.
void converse(Link& link,
              Coordinator& coordinator,
              int worker,
              milliseconds patience) {
  for (;;) {
    const Message request = link.receive();
    switch (request.op) {
      case Op::push:
        receive_gradients(link, coordinator, worker, request.numbers, patience);
        coordinator.push(worker, request.loss);
        break;
      case Op::part:
        receive_gradients(
            link,
            coordinator,
            worker,
            contents_of_part(link, request, coordinator.parameters().size()),
            patience);
        break;
      case Op::drop:
        coordinator.drop(worker);
        break;
      case Op::pull: {
        const auto rows = receive_rows(link, coordinator.parameters(), request);
        coordinator.ask(worker);
        answer(link, [&] { return coordinator.take(worker, rows, patience); });
        coordinator.given(worker);
        break;
      }
      case Op::leave:
        coordinator.leave(worker);
        break;
      case Op::last:
        answer(link, [&] { return coordinator.take_last(patience); });
        return;
      case Op::wait:
        break;
      case Op::failure:
        coordinator.fail(request.text);
        return;
      case Op::back:
        link.refuse("a second arrival");
      case Op::parameters:
      case Op::go:
        link.refuse("what a server sends");
    }
  }
}

/// Why the worker is gone; "" when it has finished or heard how the job ended.
std::string serve_while_here(Link& link,
                             Coordinator& coordinator,
                             int worker,
                             milliseconds patience) {
  try {
    try {
      converse(link, coordinator, worker, patience);
    } catch (const JobEnded& ended) {
      link.send({.op = Op::failure, .text = ended.what()});
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    coordinator.fail(error.what());
  }
  return "";
}

void serve_worker(std::unique_ptr<Link>& link,
                  Coordinator& coordinator,
                  int worker,
                  milliseconds patience,
                  const WaitFor& wait_for) {
  for (;;) {
    const std::string reason =
        serve_while_here(*link, coordinator, worker, patience);
    if (reason.empty()) {
      return;
    }
    link.reset();  // if it lives, it hears of it at once
    if (wait_for && coordinator.suspend(worker)) {
      link = wait_for(worker);
    }
    if (!link) {
      coordinator.lose(worker, reason);
      return;
    }
    coordinator.welcome(worker);
  }
}

}  // namespace

void serve_workers(std::vector<std::unique_ptr<Link>>& links,
                   Coordinator& coordinator,
                   milliseconds patience,
                   const WaitFor& wait_for) {
  const auto serve_one = [&](size_t i) {
    serve_worker(
        links[i], coordinator, static_cast<int>(i), patience, wait_for);
  };
  std::vector<std::thread> threads;
  threads.reserve(links.size());
  try {
    while (threads.size() < links.size()) {
      threads.emplace_back(serve_one, threads.size());
    }
  } catch (const std::system_error& error) {
    coordinator.fail(thread_error(
        c10::str("worker ", threads.size(), " of ", links.size()), error));
  }
  // Without a thread they are told here why the job has ended.
  for (size_t i = threads.size(); i < links.size(); ++i) {
    serve_one(i);
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

}  // namespace dp::detail
