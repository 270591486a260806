"""Espresso: a bounded tree over how many stages each GPU type gets, and a placer of stages.

Its goal is money under a time limit.  As a baseline of throughput the limit is infinite and every
plan has the same price, so that the cheapest is the fastest; stock and stages have no limit but the
composition and the model.  TP is an input: 1, as the paper runs it.  The micro-batch is an input
too: every profiled size is tried.  The forward pass is the profile's, in place of a roofline times
an efficiency that nobody has fitted for these GPUs.
Source: Zhou et al., Espresso, INFOCOM 2025.
"""

from benchmarks.baselines.espresso.allocator import plan as plan
