#include "samples/support/report.h"

#include <ddp/process_group.h>

#include <iostream>

#include "samples/support/text.h"

namespace samples {
namespace {

std::string title(const Place& place) {
  return format("epoch %ld/%ld", place.epoch, place.epochs);
}

}  // namespace

Report::Report()
    : console_(ddp::rank() == 0 ? std::cout : silence_,
               ddp::rank() == 0 ? stdout_width() : 0) {}

void Report::begin(const Dataset& dataset, const std::string& where) {
  const auto shape = dataset.train.shape();
  console_.line(format("%s: %zu images to train on, %zu to test, %ldx%ldx%ld",
                       dataset.name.c_str(),
                       *dataset.train.size(),
                       *dataset.test.size(),
                       shape.channels,
                       shape.height,
                       shape.width));
  console_.line(where);
}

void Report::step(const Place& place,
                  double loss,
                  std::optional<double> scale) {
  const auto scaling = scale ? format(", scale %.9g", *scale) : "";
  console_.line(format("%s step %ld/%ld: loss %.9g%s",
                       title(place).c_str(),
                       place.step,
                       place.steps,
                       loss,
                       scaling.c_str()));
}

void Report::progress(const Place& place, double loss) {
  console_.show({title(place), place.step, place.steps, loss});
}

void Report::epoch(const Place& place,
                   double loss,
                   const Score& test,
                   const Stopwatch& time) {
  console_.line(
      format("%s: loss %.4f, test loss %.4f, test accuracy %.2f %%, %.1f s",
             title(place).c_str(),
             loss,
             test.loss,
             test.percent(),
             time.seconds()));
}

void Report::end(const Score& test,
                 const std::string& workers,
                 const Stopwatch& time) {
  console_.line(format("test accuracy %.2f %% (%ld of %ld), %s, %.1f s",
                       test.percent(),
                       test.correct,
                       test.count,
                       workers.c_str(),
                       time.seconds()));
}

void Report::saved(const std::string& file, int64_t epochs, int64_t steps) {
  console_.line(format("checkpoint saved: %s after %ld epochs, %ld steps",
                       file.c_str(),
                       epochs,
                       steps));
}

void Report::resumed(const std::string& file, int64_t epochs, int64_t steps) {
  console_.line(format("resumed from %s after %ld epochs, %ld steps",
                       file.c_str(),
                       epochs,
                       steps));
}

void Report::stopped(int64_t steps) {
  console_.line(
      format("stopped after %ld steps, as asked; --resume goes on", steps));
}

void Report::nothing_to_resume(const std::string& file) {
  console_.line("no checkpoint at " + file + ": starting from the beginning");
}

}  // namespace samples
