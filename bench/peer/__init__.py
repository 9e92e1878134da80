"""Attention kernels beside each other: what bench/peers.py measures, a file a library.

A peer is prepare(case, sets) -> an object with run(i), result(), the output of set 0 as [T, Hq, Dv], details() for its
row of the record, and close(); it raises Unsupported with a reason in a line. calls.py makes one of a closure a set.
"""
