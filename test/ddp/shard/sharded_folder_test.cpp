// Checkpoints of sharded models as folders. The ranks are threads.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "ddp/base/atomic_folder.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "ddp/checkpoint/detail/tensor_pieces.h"
#include "ddp/checkpoint_folder.h"
#include "ddp/data/distributed_sampler.h"
#include "test/ddp/shard/sharded_training.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace sharded_folder_test {

using Catch::Contains;
using test::check_equal;
using test::Elementwise;
using test::Form;
using test::Group;
using test::in_form;
using test::Plain;
using test::run;
using test::Sharded;
using test::TemporaryFolder;
using test::values_in;

FullyShardedDataParallelOptions units_of(double megabytes) {
  return FullyShardedDataParallelOptions().unit_cap_mb(megabytes);
}

/// A net with a part of each unit on each of 4 ranks. Parts begin within a row
/// of a convolution and of other weights.
test::ShardedNet wide_net() {
  return test::ShardedNet(301, 133);
}

std::unique_ptr<Sharded> sharded(Form form,
                                 const Group& group,
                                 Elementwise kind,
                                 double megabytes = 1) {
  return in_form(form, group, [&] {
    return std::make_unique<Sharded>(
        group, kind, units_of(megabytes), wide_net());
  });
}

/// Trains `ranks` ranks, and saves a folder "first" and the file "first.pt".
void save_first(const TemporaryFolder& folder,
                int ranks,
                Elementwise kind,
                Form form = Form::host,
                double megabytes = 1) {
  run(ranks, [&](const Group& group) {
    const auto training = sharded(form, group, kind, megabytes);
    training->train(0, 3);
    training->checkpoint->epoch(4).step(12);
    training->checkpoint->save_sharded(folder / "first");
    training->checkpoint->save(folder / "first.pt");
  });
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void check_error(const std::function<void()>& work, const std::string& text) {
  const auto error = error_of(work);
  TORCH_CHECK(error.find(text) != std::string::npos, error);
}

TEST_CASE("a folder of shards has the values of the file",
          "[shard][sharded_folder]") {
  const auto kind = GENERATE(Elementwise::adamw,
                             Elementwise::sgd,
                             Elementwise::amsgrad,
                             Elementwise::rmsprop,
                             Elementwise::adagrad,
                             Elementwise::fused,
                             Elementwise::fused_sgd);
  const auto form = GENERATE(Form::host, Form::gathered);
  CAPTURE(static_cast<int>(kind), static_cast<int>(form));
  const TemporaryFolder folder;
  save_first(folder, 3, kind, form);
  run(2, [&](const Group& group) {
    const auto training = sharded(form, group, kind);
    training->checkpoint->load(folder / "first");
    TORCH_CHECK(training->checkpoint->epoch() == 4);
    training->checkpoint->save(folder / "second.pt");
    training->train(3, 1);
  });
  check_equal(values_in(folder / "first.pt"), values_in(folder / "second.pt"));
}

TEST_CASE("a folder of shards loads with any number of ranks and units",
          "[shard][sharded_folder]") {
  const int saved = GENERATE(1, 2, 3);
  const int loaded = GENERATE(1, 2, 3, 4);
  CAPTURE(saved, loaded);
  const TemporaryFolder folder;
  const auto kind = Elementwise::adamw;
  save_first(folder, saved, kind, Form::host, 0.05);
  run(loaded, [&](const Group& group) {
    const auto training = sharded(Form::host, group, kind, 0.1);
    training->checkpoint->load(folder / "first");
    training->checkpoint->save(folder / "second.pt");
    // Of a plain model, too, which the folder of another one replaces.
    Plain plain(group, kind, {}, wide_net());
    plain.checkpoint->load(folder / "first");
    plain.checkpoint->save(folder / "third.pt");
    plain.checkpoint->save_sharded(folder / "first");
    training->checkpoint->load(folder / "first");
    training->checkpoint->save(folder / "fourth.pt");
  });
  const auto expected = values_in(folder / "first.pt");
  for (const auto* name : {"second.pt", "third.pt", "fourth.pt"}) {
    CAPTURE(name);
    check_equal(expected, values_in(folder / name));
  }
}

TEST_CASE("each rank writes its part alone", "[shard][sharded_folder]") {
  const TemporaryFolder folder;
  save_first(folder, 3, Elementwise::adamw, Form::host, 0.05);
  int64_t all = 0;
  for (const auto* rank : {"0", "1", "2"}) {
    int64_t bytes = 0;
    for (const auto& name : detail::names_in(folder / "first")) {
      if (name.rfind("rank-" + std::string(rank), 0) == 0) {
        struct stat status {};
        ::stat((folder / "first/" + name).c_str(), &status);
        bytes += status.st_size;
      }
    }
    CAPTURE(rank, bytes);
    CHECK(bytes > 30'000);
    all += bytes;
  }
  struct stat whole {};
  ::stat((folder / "first.pt").c_str(), &whole);
  CHECK(all < whole.st_size * 3 / 2);
}

TEST_CASE("a folder of shards has the other entries", "[sharded_folder]") {
  const TemporaryFolder folder;
  run(2, [&](const Group& group) {
    const auto training = sharded(Form::host, group, Elementwise::sgd);
    torch::nn::Linear critic(3, 3);
    {
      const torch::NoGradGuard no_grad;
      critic->weight.fill_(7);
      critic->bias.fill_(8);
    }
    torch::optim::AdamW second(critic->parameters());
    critic->weight.sum().backward();
    critic->bias.sum().backward();
    second.step();
    double best = 0.5;
    auto order = torch::arange(5);
    DistributedSampler sampler(
        100,
        DistributedSamplerOptions().num_replicas(2).rank(group->getRank()));
    auto& checkpoint = training->checkpoint->add("critic", critic)
                           .add("second", second)
                           .add("best", best)
                           .add("order", order)
                           .add("sampler", sampler);
    training->train(0, 1);
    checkpoint.save_sharded(folder / "x");
    const auto weight = critic->weight.detach().clone();
    {
      const torch::NoGradGuard no_grad;
      critic->weight.zero_();
    }
    best = 0;
    order.zero_();
    second.zero_grad();
    checkpoint.load(folder / "x");
    TORCH_CHECK(torch::equal(weight, critic->weight));
    TORCH_CHECK(best == 0.5 && torch::equal(order, torch::arange(5)));
    // Fewer entries than the folder has.
    Checkpoint(training->model.ptr()).process_group(group).load(folder / "x");
    Checkpoint missing(training->model.ptr());
    missing.process_group(group).add("third", second);
    check_error([&] { missing.load(folder / "x"); }, "\"third\"");
    check_error([&] { missing.save_sharded(folder / "y"); }, "add the model");
  });
  std::vector<std::string> names;
  for (const auto& name : detail::names_in(folder / "x")) {
    if (name != "training.pt") {
      for (const auto& piece :
           detail::read_safetensors(folder / "x/" + name).pieces) {
        names.push_back(piece.name);
      }
    }
  }
  for (const auto* name : {"fc1.weight",
                           "norm.num_batches_tracked",
                           "critic.weight",
                           "optimizer.state.tied.momentum_buffer",
                           "second.state.critic.bias.step",
                           "second.state.critic.weight.exp_avg"}) {
    CAPTURE(name);
    CHECK(std::count(names.begin(), names.end(), name) > 0);
  }
  CHECK(std::count(names.begin(),
                   names.end(),
                   "optimizer.state.fc2.weight."
                   "momentum_buffer") == 0);
}

TEST_CASE("a folder of shards need not have a model", "[sharded_folder]") {
  const TemporaryFolder folder;
  run(2, [&](const Group& group) {
    double best = 0.5;
    Checkpoint checkpoint;
    checkpoint.process_group(group)
        .add("best", best)
        .save_sharded(folder / "x");
    best = 0;
    checkpoint.load(folder / "x");
    TORCH_CHECK(best == 0.5);
  });
}

TEST_CASE("a folder that is not whole changes nothing", "[sharded_folder]") {
  const TemporaryFolder folder;
  const auto kind = Elementwise::adamw;
  save_first(folder, 3, kind, Form::host, 0.05);
  enum class Damage { missing, cut, flipped };
  // Of the files with names that begin so.
  const auto [damage, start, text] =
      GENERATE(table<Damage, std::string, std::string>(
          {{Damage::missing, "rank-1", "not as many as its name says"},
           {Damage::missing, "rank-2", "not as many as its name says"},
           {Damage::missing, "rank", "no files of safetensors"},
           {Damage::missing, "training", "training.pt: No such file"},
           {Damage::cut, "rank-1", "as many bytes in the file"},
           {Damage::flipped, "training", "training.pt"}}));
  CAPTURE(static_cast<int>(damage), start);
  for (const auto& name : detail::names_in(folder / "first")) {
    const auto file = folder / "first/" + name;
    auto bytes = test::read_file(file);
    if (name.rfind(start, 0) != 0) {
      continue;
    }
    if (damage == Damage::missing) {
      ::unlink(file.c_str());
    } else if (damage == Damage::cut) {
      test::write_file(file, bytes.substr(0, bytes.size() - 1));
    } else {
      bytes[bytes.size() / 2] ^= 1;
      test::write_file(file, bytes);
    }
  }
  run(2, [&, &text = text](const Group& group) {
    const auto training = sharded(Form::host, group, kind);
    training->train(0, 1);
    training->checkpoint->save(folder / "before.pt");
    const auto load = [&] { training->checkpoint->load(folder / "first"); };
    check_error(load, "Cannot load " + (folder / "first"));
    check_error(load, text);
    training->checkpoint->save(folder / "after.pt");
  });
  check_equal(values_in(folder / "before.pt"), values_in(folder / "after.pt"));
}

TEST_CASE("parts that do not make a whole are an error", "[sharded_folder]") {
  const TemporaryFolder folder;
  const auto weight = torch::ones({4, 3});
  const int64_t rows = GENERATE(1, 2, 3);
  CAPTURE(rows);
  // The second file begins at row 2.
  detail::write_safetensors(folder / "a.safetensors",
                            {{{"weight", {0, 0}, weight.slice(0, 0, rows)},
                              {"bias", {0}, torch::ones({4})}},
                             ""});
  detail::write_safetensors(folder / "b.safetensors",
                            {{{"weight", {2, 0}, weight.slice(0, 2)}}, ""});
  torch::nn::Linear net(3, 4);
  const auto error = error_of([&] { Checkpoint(net).load(folder.path()); });
  if (rows == 2) {
    CHECK(error == "");
    CHECK(torch::equal(net->weight, weight));
  } else {
    CHECK_THAT(error, Contains("do not make a whole of \"weight\""));
  }
}

TEST_CASE("files of two saves are an error", "[sharded_folder]") {
  const TemporaryFolder folder;
  const std::string start = GENERATE("rank-0-0", "rank-1-0", "training");
  CAPTURE(start);
  run(2, [&](const Group& group) {
    const auto training = sharded(Form::host, group, Elementwise::sgd);
    for (const auto* name : {"x", "y"}) {
      training->checkpoint->save_sharded(folder / name);
    }
    training->checkpoint->load(folder / "x");
    barrier(group);
    for (const auto& name : detail::names_in(folder / "y")) {
      if (group->getRank() == 0 && name.rfind(start, 0) == 0) {
        test::write_file(folder / "x/" + name,
                         test::read_file(folder / "y/" + name));
      }
    }
    barrier(group);
    check_error([&] { training->checkpoint->load(folder / "x"); },
                "it is from another save than training.pt");
  });
}

TEST_CASE("a tensor need not be aligned in a file", "[sharded_folder]") {
  const TemporaryFolder folder;
  // Python's consolidated folders have headers of any length.
  const std::string header =
      R"({"bias":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
      R"("weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  REQUIRE(header.size() % 4 != 0);
  const std::string length{
      static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  const std::array<float, 2> values{3, 4};
  test::write_file(folder / "x.safetensors",
                   length + header +
                       std::string(reinterpret_cast<const char*>(values.data()),
                                   sizeof(values)));
  torch::nn::Linear net(1, 1);
  Checkpoint(net).load(folder.path());
  CHECK(net->weight.item<float>() == 3);
  CHECK(net->bias.item<float>() == 4);
}

TEST_CASE("a CheckpointFolder keeps the last folders of shards",
          "[sharded_folder]") {
  const TemporaryFolder folder;
  const auto options = CheckpointFolderOptions().keep_last(2).sharded(true);
  const auto saves = folder / "saves";
  run(3, [&](const Group& group) {
    const auto training = sharded(Form::host, group, Elementwise::adamw);
    CheckpointFolder checkpoints(saves, options);
    for (int step = 1; step <= 3; ++step) {
      training->train(step, 1);
      checkpoints.save(training->checkpoint->step(step));
      training->checkpoint->save(folder / std::to_string(step));
    }
  });
  CHECK(detail::names_in(saves).size() == 2);
  // The rest of a killed save, and a checkpoint that is damaged.
  ::mkdir((saves + "/step-000000004.pt.tmp").c_str(), 0777);
  test::write_file(saves + "/step-000000004.pt.tmp/training.pt", "");
  test::write_file(saves + "/step-000000003.pt/training.pt", "");
  run(2, [&](const Group& group) {
    const auto training = sharded(Form::host, group, Elementwise::adamw);
    CheckpointFolder checkpoints(saves, options);
    TORCH_CHECK(checkpoints.load(*training->checkpoint));
    TORCH_CHECK(training->checkpoint->step() == 2);
    training->checkpoint->save(folder / "loaded");
    checkpoints.save(training->checkpoint->step(5));
  });
  check_equal(values_in(folder / "2"), values_in(folder / "loaded"));
  CHECK(test::files_in(saves) == std::vector{saves + "/step-000000002.pt",
                                             saves + "/step-000000005.pt"});
}

TEST_CASE("a folder of another model is an error, and no older one is loaded",
          "[sharded_folder]") {
  const TemporaryFolder folder;
  const auto kind = Elementwise::adamw;
  run(2, [&](const Group& group) {
    const test::ShardedNet net;
    const Sharded small(group, kind, units_of(1), net);
    const Plain plain(group, kind, {}, test::ShardedNet());
    const auto wide = sharded(Form::host, group, kind);
    Checkpoint without_model;
    without_model.process_group(group).add("optimizer", *wide->optimizer);
    CheckpointFolder(folder / "saves").save(without_model);
    CheckpointFolder checkpoints(folder / "saves",
                                 CheckpointFolderOptions().sharded(true));
    checkpoints.save(small.checkpoint->step(1));
    wide->train(0, 1);
    checkpoints.save(wide->checkpoint->step(2));
    for (auto* checkpoint : {small.checkpoint.get(), plain.checkpoint.get()}) {
      check_error([&] { checkpoints.load(*checkpoint); },
                  "\"conv.weight\": expected shape [6, 3, 3, 3], but got "
                  "[301, 3, 3, 3]");
    }
    check_error([&] { checkpoints.load(without_model); }, "add the model");
    TORCH_CHECK(checkpoints.load(*wide->checkpoint));
  });
}

TEST_CASE("a save into a folder with other files is an error of all ranks",
          "[sharded_folder]") {
  const TemporaryFolder folder;
  ::mkdir((folder / "mine").c_str(), 0777);
  test::write_file(folder / "mine/thesis.tex", "years of work");
  run(2, [&](const Group& group) {
    const auto training = sharded(Form::host, group, Elementwise::sgd);
    for (const auto& [path, text] :
         {std::pair{folder / "mine", "has another file, \"thesis.tex\""},
          std::pair{folder / "none/x", "No such file or directory"}}) {
      const auto save = [&, &path = path] {
        training->checkpoint->save_sharded(path);
      };
      check_error(save, "Cannot save " + path);
      check_error(save, text);
    }
  });
  CHECK(test::read_file(folder / "mine/thesis.tex") == "years of work");
  CHECK(folder.size() == 1);
}

TEST_CASE("pieces make a run of memory", "[sharded_folder]") {
  std::mt19937 random(1);
  const auto below = [&](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    std::vector<int64_t> sizes;
    std::vector<int64_t> order;
    for (int64_t dimension = below(5); dimension > 0; --dimension) {
      order.push_back(static_cast<int64_t>(sizes.size()));
      sizes.push_back(1 + below(4));
    }
    std::shuffle(order.begin(), order.end(), random);
    const auto like = torch::empty(sizes).permute(order);
    const int64_t first = below(like.numel() + 1);
    const int64_t size = below(like.numel() - first + 1);
    const auto all = torch::arange(1, like.numel() + 1);
    const auto run = all.narrow(0, first, size);
    const auto pieces = detail::pieces_of_run("x", like, {run, first});
    const auto copy = torch::zeros_like(all);
    const detail::TensorPiece whole{
        "x",
        detail::origin(like.dim()),
        copy.as_strided(like.sizes(), like.strides())};
    for (const auto& piece : pieces) {
      REQUIRE(detail::copy_common(piece, whole) == piece.elements.numel());
    }
    REQUIRE(torch::equal(copy.narrow(0, first, size), run));
    REQUIRE(torch::equal(copy.sum(), run.sum()));
    REQUIRE(static_cast<int64_t>(pieces.size()) <=
            std::max<int64_t>(1, 2 * like.dim() - 1));
  }
}

}  // namespace sharded_folder_test
}  // namespace ddp
