"""Bad input ends every rank with one clear line and a non-zero exit code. No
process is left running (jobs.py waits for every process)."""

import os
import unittest

from jobs import JobTest, ddprun, program, run, run_each

TRAIN = program("train")
HELLO = program("hello")
PORT = "1"  # the error comes before a listener is needed


class Hello(JobTest):
    def test_ranks(self):
        result = self.succeed([*ddprun(3), HELLO])
        found = result.find(
            r"hello from rank (\d+) of (\d+) \(local rank (\d+), .*\): "
            r"the ranks' numbers add up to (\d+)")
        self.assertEqual(sorted(found), [(str(rank), "3", str(rank), "6")
                                         for rank in range(3)])


class Environment(JobTest):
    def check(self, pattern, binary=TRAIN, **variables):
        result = run([binary], **variables)
        self.assertEqual(result.code, 1)
        self.assertEqual(result.out, "")
        self.assert_one_line(result.err, pattern)

    def test_world_size_missing(self):
        self.check("Expected the environment variable WORLD_SIZE to be set",
                   RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)

    def test_master_does_not_resolve(self):
        self.check("MASTER_ADDR.*no-such-host.invalid", HELLO, RANK="1",
                   WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2",
                   MASTER_ADDR="no-such-host.invalid", MASTER_PORT=PORT)


class Devices(JobTest):
    def test_gpu_that_libtorch_does_not_see(self):
        """Only the device file of the GPU exists."""
        for wish, code in ({}, 1), ({"CUDA_VISIBLE_DEVICES": ""}, 0):
            result = run(
                ["unshare", "-rm", "sh", "-c",
                 'mount -t tmpfs none /dev && : >/dev/nvidia0 || exit 99; '
                 'exec "$0"', HELLO], **wish)
            if result.code == 99 or "unshare: " in result.err:
                self.skipTest(f"mounting needs rights: {result.err}")
            self.assertEqual(result.code, code, result.err)
            if code != 0:
                self.assert_one_line(
                    result.err, "Expected LibTorch to see a GPU, because this "
                    "host has 1")


class Model(JobTest):
    def test_mismatch_on_one_rank(self):
        for result in run_each(3, [program("mismatched_model")]):
            self.assertEqual(result.code, 1)
            self.assert_one_line(result.err, r"fc2\.weight")


class Checkpoint(JobTest):
    whole = None  # one checkpoint for all tests

    def setUp(self):
        super().setUp()
        self.file = os.path.join(self.folder, "step-000000023.pt")
        self.train = [TRAIN, "--epochs=1", "--checkpoint", self.folder]
        if Checkpoint.whole is None:
            self.succeed(self.train)
            with open(self.file, "rb") as file:
                Checkpoint.whole = file.read()
        self.write(self.whole)

    def write(self, content):
        with open(self.file, "wb") as file:
            file.write(content)

    def check_test(self, *flags):
        result = run([*self.train, "--mode=test", *flags])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "step-000000023.pt")

    def check(self, *flags):
        """Both ways to read it fail on every rank and leave the file unchanged."""
        with open(self.file, "rb") as file:
            before = file.read()
        for result in run_each(2, [*self.train, "--resume", *flags]):
            self.assertEqual(result.code, 1)
            self.assert_one_line(result.err, "step-000000023.pt")
        self.check_test(*flags)
        with open(self.file, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_flipped_byte(self):
        """state_dict_test damages a file in every way."""
        middle = len(self.whole) // 2
        self.write(self.whole[:middle] +
                   bytes([self.whole[middle] ^ 1]) + self.whole[middle + 1:])
        self.check()

    def test_of_another_model(self):
        self.check("--model=resnet18")

    def test_folder_that_cannot_be(self):
        result = run([TRAIN, "--checkpoint", self.file])  # a file
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "step-000000023.pt")


class CommandLine(JobTest):
    """One error of each kind; train_options_test and datasets_test have all."""

    def test_usage(self):
        result = run([TRAIN, "--epochs=0"])
        self.assertEqual(result.code, 2)
        self.assert_one_line(result.err, "--epochs")

    def test_data_folder(self):
        place = os.path.join(self.folder, "none")
        result = run([TRAIN, "--data", place])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, place)

    def test_gpu_that_does_not_exist(self):
        result = run([TRAIN, "--gpus=1000"])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "--gpus.*1000")


if __name__ == "__main__":
    unittest.main()
