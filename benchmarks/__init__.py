"""Benchmarks: every figure beside the limit of this machine, measured in the same run, interleaved."""
