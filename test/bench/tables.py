"""Medians with confidence intervals, and tables."""

import numpy


def median_interval(values, draws=10_000):
    """Returns the median and its 95 % bootstrap interval."""
    values = numpy.asarray(values)
    picks = numpy.random.default_rng(0).integers(0, len(values),
                                                 (draws, len(values)))
    low, high = numpy.percentile(numpy.median(values[picks], axis=1),
                                 [2.5, 97.5])
    return numpy.median(values), low, high


def format_ratio(values):
    return "{:.3f} [{:.3f}, {:.3f}]".format(*median_interval(values))


def format_time(values):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(values))


def print_table(title, header, rows):
    """Prints a table as Markdown."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)
