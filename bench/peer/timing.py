"""Times of runs, the GPU's and not the host's."""

import statistics
import time

import torch

from peer.calls import one_line

HOST_BOUND_MS = 1.0  # a call that takes the host longer is captured
WIDE = 1.5  # so is one whose median is so many times its minimum: a kernel's own times differ by a fifth at most
SLEEP_CYCLES_A_MS = 2_000_000  # of torch.cuda._sleep: a GPU's clock is at most some 2 GHz
MAX_SLEEP_MS = 5000


def captured(run, copies):
    """The runs of all sets as graphs, without what they cost the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)
    torch.cuda.synchronize()
    graphs = []
    for i in range(copies):
        graphs.append(torch.cuda.CUDAGraph())
        # Relaxed: a library may load a kernel or allocate while it is captured.
        with torch.cuda.graph(graphs[i], capture_error_mode="relaxed"):
            run(i)
    return lambda i: graphs[i % copies].replay()


def measure_on_cpu(run, warm_up, repeats):
    times = []
    for i in range(warm_up + repeats):
        start = time.perf_counter()
        run(i)
        times.append((time.perf_counter() - start) * 1e3)
    return summary(times[warm_up:])


def host_ms_of(run):
    """What a call takes the host; the best of three, since the machine may do something else."""
    times = []
    for i in range(3):
        start = time.perf_counter()
        run(i)
        times.append((time.perf_counter() - start) * 1e3)
        torch.cuda.synchronize()
    return min(times)


def in_graphs(run, copies, no_graph):
    """The same runs as graphs, and True; or the runs as they are, and why."""
    if no_graph:
        return run, f"no: {no_graph}"
    try:
        replay = captured(run, copies)
    except Exception as error:  # the library's own reason
        torch.cuda.synchronize()
        return run, f"no: {one_line(error)}"
    replay(0)
    return replay, True


def measure_on_gpu(run, copies, args, no_graph, ragged):
    """A row of times; ragged: graphs are tried at once."""
    for i in range(args.warm_up):
        run(i)
    torch.cuda.synchronize()
    row = {"host_ms": host_ms_of(run)}
    if ragged or row["host_ms"] > HOST_BOUND_MS:
        run, row["graph"] = in_graphs(run, copies, no_graph)
    row |= summary(event_times(run, args, row))
    if is_wide(row) and "graph" not in row:
        run, row["graph"] = in_graphs(run, copies, no_graph)
        if row["graph"] is True:
            row |= summary(event_times(run, args, row))
    return row


def event_times(run, args, row):
    host_ms = HOST_BOUND_MS if row.get("graph") is True else row["host_ms"]
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(args.repeats)]
    # The GPU waits until about all runs are enqueued, so that it never waits for the host between two events.
    torch.cuda._sleep(int(SLEEP_CYCLES_A_MS * min(5 + 1.5 * host_ms * args.repeats, MAX_SLEEP_MS)))
    for i, (first, last) in enumerate(events):
        first.record()
        run(args.warm_up + i)
        last.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in events]


def is_wide(row):
    """Whether something else than the kernel is in the times."""
    return row["median_ms"] > WIDE * row["min_ms"]


def summary(times):
    return {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times), "times_ms": times}
