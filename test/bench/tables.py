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


def format_interval(values, digits):
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*median_interval(values), d=digits)


def format_time(values):
    return format_interval(values, 2)


def format_ratio(values, others):
    """Formats the ratio of values to others of the same rounds."""
    return format_interval([a / b for a, b in zip(values, others)], 3)


def print_table(title, header, rows):
    """Prints a table as Markdown."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)
