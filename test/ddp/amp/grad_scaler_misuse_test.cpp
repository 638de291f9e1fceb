#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "test/ddp/amp/scaled_toy.h"
#include "test/support/catch.h"
#include "test/support/state_dict.h"
#include "test/support/temporary_folder.h"

// Misuse of a scaler, and a scaler's state in a checkpoint.
namespace ddp {
namespace grad_scaler_misuse_test {

using Catch::Contains;
using test::kInf;
using test::kNan;
using test::small_scaler;
using test::TemporaryFolder;
using test::Toy;
using torch::Tensor;
using torch::optim::SGD;
using Options = GradScalerOptions;

TEST_CASE("numbers that no scaler can have", "[grad_scaler][errors]") {
  CHECK_THROWS_WITH(GradScaler(Options().growth_factor(1)),
                    Contains("growth_factor above 1, but got 1"));
  CHECK_THROWS_WITH(GradScaler(Options().backoff_factor(1)),
                    Contains("backoff_factor between 0 and 1, but got 1"));
  CHECK_THROWS_WITH(GradScaler(Options().backoff_factor(0)),
                    Contains("backoff_factor between 0 and 1, but got 0"));
  CHECK_THROWS_WITH(GradScaler(Options().growth_interval(0)),
                    Contains("growth_interval of at least 1, but got 0"));
  for (const double scale : {0.0, -1.0, kInf, kNan}) {
    CHECK_THROWS_WITH(GradScaler(Options().init_scale(scale)),
                      Contains("a scale that is positive and finite"));
  }
  GradScaler scaler;
  CHECK_THROWS_WITH(scaler.set_growth_factor(0.5), Contains("but got 0.5"));
  CHECK_THROWS_WITH(scaler.set_backoff_factor(2), Contains("but got 2"));
  CHECK_THROWS_WITH(scaler.set_growth_interval(-1), Contains("but got -1"));
  CHECK(scaler.get_growth_factor() == 2);
}

TEST_CASE("calls before the first scale", "[grad_scaler][errors]") {
  GradScaler scaler;
  Toy toy;
  CHECK_THROWS_WITH(scaler.unscale_(toy.optimizer),
                    Contains("scale() before the first unscale_()"));
  CHECK_THROWS_WITH(scaler.step(toy.optimizer),
                    Contains("scale() before the first step()"));
  CHECK_THROWS_WITH(scaler.update(), Contains("before the first update()"));
  CHECK_THROWS_WITH(scaler.update(1.0), Contains("before the first update()"));
  CHECK_THROWS_WITH(scaler.scale(Tensor()), Contains("an undefined one"));
}

TEST_CASE("calls in another order", "[grad_scaler][errors]") {
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.backward(scaler, 1);
  CHECK_THROWS_WITH(scaler.update(), Contains("step() or unscale_() before"));
  scaler.unscale_(toy.optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(toy.optimizer),
                    Contains("are unscaled already"));
  CHECK(toy.weight.grad().eq(1).all().item<bool>());
  CHECK(scaler.step(toy.optimizer));
  CHECK_THROWS_WITH(scaler.unscale_(toy.optimizer),
                    Contains("unscale_() before step()"));
  CHECK_THROWS_WITH(scaler.step(toy.optimizer),
                    Contains("this optimizer has stepped already"));
  CHECK(toy.holds(-1));
  scaler.update();
  CHECK_THROWS_WITH(scaler.update(), Contains("step() or unscale_() before"));
  CHECK(toy.train(scaler, 1));  // none of the errors did harm
}

TEST_CASE("gradients that cannot be unscaled", "[grad_scaler][errors]") {
  GradScaler scaler(small_scaler());
  Toy fine;
  Toy half(torch::kHalf);
  SGD both({fine.weight, half.weight}, 1.0);
  fine.backward(scaler, 1);
  half.backward(scaler, 1);
  CHECK_THROWS_WITH(scaler.step(both),
                    Contains("parameter 1 of the optimizer's group 0") &&
                        Contains("float16; keep parameters in float"));
  CHECK(fine.weight.grad().eq(8).all().item<bool>());

  Toy none;
  CHECK_THROWS_WITH(scaler.step(none.optimizer),
                    Contains("none of the optimizer's parameters has one"));
}

TEST_CASE("scales and states that are none", "[grad_scaler][errors]") {
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.step(scaler, 1);
  CHECK_THROWS_WITH(scaler.update(0.0), Contains("positive and finite"));
  CHECK_THROWS_WITH(
      scaler.load_state_dict(GradScaler(Options().enabled(false)).state_dict()),
      Contains("the state of an enabled GradScaler"));
  const auto state = GradScaler().state_dict();
  CHECK_THROWS_WITH(
      scaler.load_state_dict(test::changed(state, "_growth_tracker", -1)),
      Contains("growth_tracker"));
  CHECK_THROWS_WITH(scaler.load_state_dict(test::changed(state, "scale", 0.0)),
                    Contains("positive"));
  CHECK(scaler.get_scale() == 8);
  CHECK(scaler.get_growth_interval() == 3);
  scaler.update();
}

TEST_CASE("a checkpoint keeps a scaler", "[grad_scaler][checkpoint]") {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 1);
  GradScaler scaler(small_scaler());
  Toy toy;
  toy.train(scaler, kInf);
  toy.train(scaler, 1);
  Checkpoint(net).add("scaler", scaler).save(folder / "a.pt");
  GradScaler restored;
  Checkpoint(net).add("scaler", restored).load(folder / "a.pt");
  CHECK(restored.get_scale() == 4);
  CHECK(restored.get_growth_interval() == 3);
  CHECK(test::entry(restored.state_dict(), "_growth_tracker").toInt() == 1);

  Checkpoint(net).load(folder / "a.pt");  // a load may leave it out
  GradScaler off(Options().enabled(false));
  Checkpoint(net).add("scaler", off).load(folder / "a.pt");
  CHECK(off.get_scale() == 1);
}

TEST_CASE("a checkpoint that lacks a scaler's state is refused",
          "[grad_scaler][checkpoint][errors]") {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 1);
  Checkpoint(net).save(folder / "none.pt");
  GradScaler off(Options().enabled(false));
  Checkpoint(net).add("scaler", off).save(folder / "off.pt");
  auto dict = detail::read_torch_file(folder / "off.pt").value.toGenericDict();
  CHECK(dict.at("scaler").toGenericDict().empty());
  auto cut = detail::new_dict().toGenericDict();
  cut.insert("scale", 4.0);
  dict.insert_or_assign("scaler", cut);
  detail::write_torch_file(folder / "cut.pt", dict);

  GradScaler scaler(small_scaler());
  Checkpoint checkpoint(net);
  checkpoint.add("scaler", scaler);
  const auto load = [&](const char* file) { checkpoint.load(folder / file); };
  torch::nn::init::zeros_(net->weight);
  CHECK_THROWS_WITH(load("none.pt"),
                    Contains("none.pt: ") && Contains("scaler"));
  CHECK_THROWS_WITH(load("off.pt"),
                    Contains("off.pt: in \"scaler\": Expected the state of an "
                             "enabled GradScaler"));
  CHECK_THROWS_WITH(load("cut.pt"),
                    Contains("cut.pt: ") && Contains("growth_factor"));
  CHECK(net->weight.eq(0).all().item<bool>());
  CHECK(scaler.get_scale() == 8);
}

}  // namespace grad_scaler_misuse_test
}  // namespace ddp
