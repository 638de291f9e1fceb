#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <set>

#include "samples/support/augment.h"
#include "samples/support/datasets.h"
#include "samples/support/models.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/schedule.h"
#include "test/support/catch.h"

using namespace samples;

namespace models_test {

std::vector<std::string> names(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

bool has(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

TEST_CASE("the small CNN is PyTorch's MNIST example") {
  SmallCnn mnist({1, 28, 28}, 10);
  CHECK(names(mnist) == std::vector<std::string>{"conv1.weight",
                                                 "conv1.bias",
                                                 "conv2.weight",
                                                 "conv2.bias",
                                                 "fc1.weight",
                                                 "fc1.bias",
                                                 "fc2.weight",
                                                 "fc2.bias"});
  CHECK(parameter_count(mnist) == 1'199'882);  // as the example prints
  CHECK(mnist.forward(torch::rand({3, 1, 28, 28})).sizes() ==
        torch::IntArrayRef({3, 10}));
}

TEST_CASE("the small CNN takes images of any size from 6x6 on") {
  for (const auto& shape : {ImageShape{1, 8, 8}, {3, 6, 6}, {2, 9, 14}}) {
    SmallCnn net(shape, 4);
    const auto images =
        torch::rand({5, shape.channels, shape.height, shape.width});
    CHECK(net.forward(images).sizes() == torch::IntArrayRef({5, 4}));
  }
  CHECK_THROWS_WITH(SmallCnn({1, 5, 8}, 10),
                    Catch::Contains("at least 6x6 for the small CNN, but got "
                                    "5x8"));
}

TEST_CASE("the small CNN drops out in training alone") {
  SmallCnn net({1, 8, 8}, 10);
  const auto images = torch::rand({4, 1, 8, 8});
  CHECK_FALSE(torch::equal(net.forward(images), net.forward(images)));
  net.eval();
  CHECK(torch::equal(net.forward(images), net.forward(images)));
  net.train();
  remove_dropout(net);
  CHECK(torch::equal(net.forward(images), net.forward(images)));
}

TEST_CASE("ResNet-18 has torchvision's names and CIFAR's stem") {
  ResNet18 net(3, 10);
  const auto keys = names(net);
  CHECK(keys.size() == 62);
  CHECK(net.named_buffers().size() == 60);
  CHECK(parameter_count(net) == 11'173'962);
  CHECK(keys.front() == "conv1.weight");
  CHECK(keys.back() == "fc.bias");
  for (const auto& key : {"bn1.weight",
                          "layer1.0.conv1.weight",
                          "layer1.1.bn2.bias",
                          "layer2.0.downsample.0.weight",
                          "layer4.0.downsample.1.weight",
                          "layer4.1.conv2.weight"}) {
    CHECK(has(keys, key));
  }
  CHECK_FALSE(has(keys, "layer1.0.downsample.0.weight"));
  CHECK(net.named_parameters()["conv1.weight"].sizes() ==
        torch::IntArrayRef({64, 3, 3, 3}));
}

TEST_CASE("ResNet-18 starts from torchvision's distributions") {
  torch::manual_seed(0);
  const ResNet18 net(3, 10);
  const auto parameters = net.named_parameters();
  // Kaiming: variance 2 / fan_out, and fan_out = 9 * 512.
  CHECK(parameters["layer4.1.conv2.weight"].std().item<double>() ==
        Approx(std::sqrt(2. / (9 * 512))).epsilon(0.01));
  CHECK(torch::all(parameters["bn1.weight"] == 1).item<bool>());
  CHECK(torch::all(parameters["bn1.bias"] == 0).item<bool>());
}

TEST_CASE("ResNet-18 scores images of any size and passes gradients back") {
  ResNet18 net(1, 7);
  const auto scores = net.forward(torch::rand({2, 1, 17, 12}));
  CHECK(scores.sizes() == torch::IntArrayRef({2, 7}));
  scores.sum().backward();
  for (const auto& parameter : net.named_parameters()) {
    INFO(parameter.key());
    CHECK(parameter.value().grad().defined());
  }
}

TEST_CASE("the model follows the choice and the images") {
  const auto images = make_synthetic({2, 8, 8}, 10);
  const auto cnn = make_model(ModelKind::small_cnn, images);
  CHECK(cnn->named_parameters()["conv1.weight"].size(1) == 2);
  const auto resnet = make_model(ModelKind::resnet18, images);
  CHECK(resnet->named_parameters()["fc.weight"].sizes() ==
        torch::IntArrayRef({10, 512}));
}

TEST_CASE("crop_and_flip cuts every image out of itself") {
  constexpr int64_t kPadding = 2, kSide = 5, kCount = 200;
  const auto one = torch::arange(1, 1 + 2 * kSide * kSide, torch::kFloat32)
                       .view({1, 2, kSide, kSide});
  torch::manual_seed(3);
  const auto cut = crop_and_flip(one.expand({kCount, -1, -1, -1}), kPadding);
  REQUIRE(cut.sizes() == torch::IntArrayRef({kCount, 2, kSide, kSide}));

  const auto padded = torch::constant_pad_nd(one[0], {2, 2, 2, 2});
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  for (int64_t image = 0; image < kCount; ++image) {
    int found = 0;
    for (int64_t place = 0; place < 50; ++place) {
      const int64_t y = place / 10, x = place / 2 % 5;
      const bool flip = place % 2 == 1;
      auto expected = padded.narrow(1, y, kSide).narrow(2, x, kSide);
      expected = flip ? expected.flip({2}) : expected;
      if (torch::equal(cut[image], expected)) {
        ++found;
        seen.insert({y, x, flip});
      }
    }
    REQUIRE(found == 1);
  }
  CHECK(seen.size() > 40);  // of 50 in all

  torch::manual_seed(3);
  CHECK(torch::equal(
      cut, crop_and_flip(one.expand({kCount, -1, -1, -1}), kPadding)));
}

TEST_CASE("parameter_hash is FNV-1a over the bytes") {
  torch::nn::Module module;
  CHECK(parameter_hash(module) == 0xcbf29ce484222325);
  const std::string text = "foobar";
  const auto bytes =
      torch::tensor(std::vector<int64_t>(text.begin(), text.end()))
          .to(torch::kUInt8);
  module.register_parameter("first", bytes.narrow(0, 0, 2), false);
  module.register_parameter("second", bytes.narrow(0, 2, 4), false);
  CHECK(parameter_hash(module) == 0x85944171f73967e8);

  torch::nn::Linear linear(3, 2);
  const auto before = parameter_hash(*linear);
  CHECK(parameter_hash(*linear) == before);
  {
    const torch::NoGradGuard no_grad;
    linear->bias[1].mul_(1 + 1.2e-7);  // the last bit
  }
  CHECK(parameter_hash(*linear) != before);
}

TEST_CASE("the learning rate falls along a cosine") {
  CHECK(cosine_learning_rate(0.4, 0, 100) == Approx(0.4));
  CHECK(cosine_learning_rate(0.4, 50, 100) == Approx(0.2));
  CHECK(cosine_learning_rate(0.4, 25, 100) ==
        Approx(0.2 * (1 + std::sqrt(0.5))));
  CHECK(cosine_learning_rate(0.4, 100, 100) == Approx(0).margin(1e-12));
}

}  // namespace models_test
