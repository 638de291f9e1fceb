#include "samples/experiments/model_parallel/pipeline.h"

#include <ddp/trace.h>

#include <algorithm>
#include <fstream>

#include "samples/experiments/gradients.h"
#include "samples/experiments/spread.h"
#include "samples/support/devices.h"
#include "samples/support/stopwatch.h"

namespace samples {
namespace {

void wait_for(const StageDevices& devices) {
  synchronize(devices.first);
  synchronize(devices.second);
}

// Returns the share of the time in which both stages compute. The timeline
// shows a GPU's work at the time of its execution, not of its launch.
double both_at_work(TwoStages& network,
                    const torch::Tensor& images,
                    const std::string& timeline) {
  ddp::Profiler profiler(network.devices().first);
  network.forward(images);
  wait_for(network.devices());
  const auto events = profiler.stop();
  if (!timeline.empty()) {
    ddp::save_timeline(timeline, events);
  }
  const auto first = ddp::scopes(events, kFirstStage);
  const auto second = ddp::scopes(events, kSecondStage);
  return static_cast<double>(ddp::total_length(ddp::intersect(first, second))) /
         static_cast<double>(second.back().end - first.front().begin);
}

}  // namespace

Pass measure(TwoStages& network,
             const torch::data::Example<>& batch,
             int64_t micro_batches,
             int64_t rounds,
             const std::string& timeline) {
  std::vector<double> forward, backward;
  torch::Tensor scores;
  const auto target = batch.target.to(network.devices().second);
  network.micro_batches(micro_batches);
  for (int64_t round = 0; round <= rounds; ++round) {
    network.zero_grad();
    const Stopwatch time;
    scores = network.forward(batch.data);
    const auto loss = torch::cross_entropy_loss(scores, target);
    wait_for(network.devices());
    const double middle = time.seconds();
    loss.backward();
    wait_for(network.devices());
    if (round > 0) {  // the first round is a warm-up
      forward.push_back(1000 * middle);
      backward.push_back(1000 * (time.seconds() - middle));
    }
  }
  return {micro_batches,
          spread(forward).median,
          spread(backward).median,
          both_at_work(network, batch.data, timeline),
          scores.detach(),
          copy_gradients(network)};
}

void write_csv(const std::string& file, const std::vector<Pass>& passes) {
  std::ofstream csv(file);
  csv << "micro_batches,forward_ms,ideal,both_at_work,backward_ms\n";
  for (const auto& pass : passes) {
    csv << pass.micro_batches << ',' << pass.forward << ','
        << ideal_pipeline_time(2, pass.micro_batches) << ',' << pass.both << ','
        << pass.backward << '\n';
  }
  csv.close();
  TORCH_CHECK(csv, "Expected to write ", file, ", but cannot.");
}

double greatest_difference(const std::vector<torch::Tensor>& a,
                           const std::vector<torch::Tensor>& b) {
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    greatest = std::max(greatest,
                        (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  }
  return greatest;
}

}  // namespace samples
