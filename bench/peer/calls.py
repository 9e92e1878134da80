"""What peers are made of: closures, one a set of tensors, and ways to find one that runs."""

import torch


class Unsupported(Exception):
    """A peer cannot do a shape, or is not here; the text says why."""


class Calls:
    """Closures, one a set; each returns its output."""

    def __init__(self, calls, shape, way=""):
        self.calls, self.shape, self.out, self.way = calls, shape, None, way
        self.no_graph = ""  # why it must not be captured

    def run(self, i):
        out = self.calls[i % len(self.calls)]()
        if i % len(self.calls) == 0:
            self.out = out

    def result(self):
        return self.shape(self.out)

    def details(self):
        return {"way": self.way} if self.way else {}

    def close(self):
        self.calls, self.out = [], None


def one_line(error):
    return f"{error}".strip().split("\n")[0] or type(error).__name__


def first_that_runs(ways):
    """The first of the ways to call a peer that gets through; ways: name to a function that makes its Calls."""
    reasons = []
    for name, make in ways.items():
        try:
            calls = make()
            calls.way = name
            calls.run(0)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return calls
        except Exception as error:  # another library's: anything may come out of it
            reasons.append(f"{name}: {one_line(error)}")
    raise Unsupported("; ".join(reasons))


def repeated_heads(case, s):
    """K and V with a head for each query head, for what knows no groups."""
    groups = case.num_q_heads // case.num_kv_heads
    return s.k.repeat_interleave(groups, dim=1), s.v.repeat_interleave(groups, dim=1)


def whole_pool(s):
    """The pool with the new tokens in it, for peers that read all keys from pages; and their slots."""
    k_pool, v_pool = torch.cat([s.k_pool, s.k]), torch.cat([s.v_pool, s.v])
    new_slots = torch.arange(s.k.shape[0], dtype=torch.int32, device=s.k.device) + s.k_pool.shape[0]
    return k_pool, v_pool, new_slots


def slots_of(case, s, new_slots):
    """Where each token lies, sequence by sequence."""
    prefixes, new = s.slots.view(case.seqs, case.prefix), new_slots.split(case.extends)
    return [torch.cat([prefixes[b], new[b]]) for b in range(case.seqs)]
