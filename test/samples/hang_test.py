"""ddprun --hang-timeout with a real training. One rank is stopped in a collective:
ddprun names it, and the group restarts and finishes."""

import unittest

from jobs import JobTest, ddprun, program

# Rank 1 stops itself once, in the middle of its first training. ddprun replaces
# $$ by $.
STOPS = r"""
if [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then
  ( until grep -q 'pass=0*[2-9]' $DDPRUN_JOB_DIR/progress_$RANK; do sleep 0.01; done
    kill -STOP $$$$ ) &
fi
exec "$0" --epochs=1 --no-cuda
"""


# Last report of a rank, with the last collective that it has begun.
REPORT = (r'.*: last report "all-reduce of gradient bucket 1 of 1, '
          r'after backward pass \d+, .*collective')


class Hang(JobTest):
    def test_a_stopped_rank_is_named_and_the_group_finishes(self):
        result = self.succeed(
            [*ddprun(2, "--hang-timeout=1", "--max-restarts=1"),
             "sh", "-c", STOPS, program("train")])
        for pattern in (r"ddprun: rank 1 hangs: no progress for ",
                        r"  rank 1 \(local rank 1, pid \d+\)" + REPORT +
                        ".*; it is stopped by a signal",
                        r"  rank 0" + REPORT,
                        r"starting all workers again: restart 1 of 1\n"):
            self.assertRegex(result.err, pattern)
        self.assertEqual(len(result.find(r"epoch 1/1: loss .*")), 1)

    def test_parameter_servers_with_a_slow_worker_do_not_hang(self):
        # More steps than the time of a first step, five seconds, allows.
        self.succeed([*ddprun(3, "--hang-timeout=1"), program("parameter_server"),
                      "--epochs=1", "--slow-worker=400"])


if __name__ == "__main__":
    unittest.main()
