"""On a GPU: bits, streams, graphs, no waiting, the host's overhead, and captured calls. Skipped without one."""

from __future__ import annotations

import os
import subprocess
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make test-python-torch installs it")
if not torch.cuda.is_available():
    pytest.skip("no GPU that torch sees", allow_module_level=True)

from conftest import Batch, attention, check_close  # noqa: E402

import extattn  # noqa: E402
import extattn.sglang as sgl  # noqa: E402
import extattn.torch  # noqa: E402

BOUNDS = {torch.bfloat16: 3e-3, torch.float16: 5e-4}
# One has less work than a GPU has multiprocessors, and needs no workspace; the other has more, and an order of it.
SMALL = {"dim": 128}
LARGE = {"prefix": (300, 0, 129, 40), "extend": (1500, 2000, 700, 1), "q_heads": 16, "kv_heads": 8, "dim": 128}
both_sizes = pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])


def on_gpu(batch, dtype=torch.bfloat16):
    args = [torch.from_numpy(x).to("cuda") for x in batch.args()]
    args[:5] = [x.to(dtype) for x in args[:5]]
    for name, tensor in zip(("q", "k", "v", "k_cache", "v_cache"), args):
        setattr(batch, name, tensor.float().cpu().numpy())
    return args


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("dim", [13, 64, 128, 256, 512])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_against_the_definition(dtype, dim, index):
    batch = Batch(prefix=(70, 0, 129), extend=(65, 130, 1), dim=dim, page_size=16, index=index)
    args = on_gpu(batch, dtype)
    out, lse = extattn.extend_attention(*args, return_lse=True)
    wanted, wanted_lse = attention(batch)
    check_close(out.double().cpu(), wanted, BOUNDS[dtype])
    check_close(lse.cpu(), wanted_lse, 1e-3)
    checked = extattn.extend_attention(*args, validate=True)
    assert torch.equal(checked, out)


def test_bad_slots_are_found_when_asked():
    args = on_gpu(Batch(dim=64))
    extattn.extend_attention(*args)
    args[7] = args[7] + 1000
    for _ in range(2):
        with pytest.raises(extattn.InvalidError, match=r"kv_indices\[0\]"):
            extattn.extend_attention(*args, validate=True)


def test_current_stream():
    """The call is ordered behind what its own stream still has to do."""
    args = on_gpu(Batch(dim=64))
    wanted = extattn.extend_attention(*args)
    stream = torch.cuda.Stream()
    q = torch.zeros_like(args[0])
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        q.copy_(args[0])
        out = extattn.extend_attention(q, *args[1:])
    stream.synchronize()
    assert torch.equal(out, wanted)


def test_no_waiting():
    """Calls return while the GPU is still busy with what came before."""
    args = on_gpu(Batch(dim=64))
    out = extattn.extend_attention(*args)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    done = torch.cuda.Event()
    done.record()
    start = time.perf_counter()
    for _ in range(20):
        extattn.extend_attention(*args, out=out)
    seconds = time.perf_counter() - start
    assert not done.query(), f"the calls waited {seconds} s"
    torch.cuda.synchronize()


@both_sizes
def test_graph(shape):
    """Captured once, replayed over new contents: eager bits, also with a workspace and a result made inside."""
    args = on_gpu(Batch(seed=1, **shape))
    extattn.extend_attention(*args)
    other = on_gpu(Batch(seed=2, **shape))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = extattn.extend_attention(*args, return_lse=True)
    for x, y in zip(args, other):
        x.copy_(y)
    graph.replay()
    wanted, wanted_lse = extattn.extend_attention(*other, return_lse=True)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


def test_streams_and_a_graph_at_the_same_time():
    """Each call has a workspace to itself, however calls of two streams and a graph's replays lie in time."""
    batches = [on_gpu(Batch(seed=seed, **LARGE)) for seed in range(3)]
    wanted = [extattn.extend_attention(*args) for args in batches]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = extattn.extend_attention(*batches[2])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in batches]
    found = [[], []]
    for _ in range(20):
        for i in range(2):
            with torch.cuda.stream(streams[i]):
                found[i].append(extattn.extend_attention(*batches[i]))
        with torch.cuda.stream(streams[2]):
            graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(replayed, wanted[2])
    for i in range(2):
        assert all(torch.equal(out, wanted[i]) for out in found[i])


def sglang_args(batch, dtype=torch.bfloat16):
    args = on_gpu(batch, dtype)
    out = torch.empty_like(args[0])
    return [*args[:3], out, *args[3:]], out


def test_sglang_graphs_and_no_waiting():
    """Both functions and merge_state, captured; torch itself reports any wait as an error."""
    batch = Batch(prefix=(70, 0, 129), extend=(65, 130, 1), dim=128)
    args, out = sglang_args(batch)
    options = (None, True, None, 130, 1.0, 1.0)
    lens = torch.tensor(batch.extend, dtype=torch.int32, device="cuda")
    new = torch.arange(len(batch.k_cache), len(batch.k_cache) + len(batch.q), device="cuda")
    k_pool, v_pool = torch.cat([args[4], args[1]]), torch.cat([args[5], args[2]])
    unified_out, halves = torch.empty_like(out), [torch.empty_like(out) for _ in range(2)]
    lses = [torch.empty(out.shape[:2], device="cuda") for _ in range(2)]

    def work():
        sgl.extend_attention_fwd(*args, *options)
        indptr, indices, prefix = sgl.build_unified_kv_indices(args[7], args[8], args[6][:-1], lens, new, 3)
        sgl.extend_attention_fwd_unified(
            args[0], unified_out, k_pool, v_pool, 1.0, 1.0, args[6], indptr, indices, prefix.to(torch.int32), 130
        )
        for half, lse, skip in zip(halves, lses, ("skip_extend", "skip_prefix")):
            sgl.extend_attention_fwd(*args[:3], half, *args[4:], *options, lse_extend=lse, **{skip: True})
        return sgl.merge_state(halves[0], lses[0], halves[1], lses[1])[0]

    work()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        merged = work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = out.clone()
    assert torch.equal(unified_out, wanted)
    torch.testing.assert_close(merged, wanted, rtol=2e-2, atol=1e-2)
    for x in (out, unified_out):
        x.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = work()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
    assert torch.equal(unified_out, wanted)
    assert torch.equal(again, merged)


def test_rows_past_the_batch_stay():
    """A padded batch: queries past qo_indptr's end are not written."""
    batch = Batch(prefix=(20, 3), extend=(10, 6), dim=128)
    args, out = sglang_args(batch)
    sgl.extend_attention_fwd(*args, None, True, None, 10, 1.0, 1.0)
    padded = [
        *(torch.cat([x, x[:5]]) for x in args[:3]),
        torch.full((21, *out.shape[1:]), 7.0, dtype=out.dtype, device="cuda"),
    ]
    sgl.extend_attention_fwd(*padded, *args[4:], None, True, None, 10, 1.0, 1.0)
    assert torch.equal(padded[3][:16], out)
    assert (padded[3][16:] == 7).all()


def test_compile():
    args = on_gpu(Batch(dim=64))

    def f(q, *rest):
        return extattn.extend_attention(q * 2, *rest) + 1

    assert torch.equal(torch.compile(f, fullgraph=True)(*args), f(*args))


@pytest.mark.parametrize("padding", [0, 5])
def test_a_captured_call_replays_on_the_cpu(tmp_path, padding):
    """Within the accuracy promise of both; and with the same device, to the same bits."""
    command = os.environ.get("EXTATTN_COMMAND")
    if not command:
        pytest.skip("EXTATTN_COMMAND is not set: no command to replay with")
    from test_numpy import read_safetensors

    batch = Batch(prefix=(70, 0, 129), extend=(65, 130, 1), dim=128, page_size=16)
    args = on_gpu(batch)
    rows = len(batch.q)
    args[:3] = [torch.cat([x, x[:padding]]) for x in args[:3]]
    with extattn.capture(tmp_path, call=1):
        out, lse = extattn.extend_attention(*args, return_lse=True)
    (case,) = tmp_path.iterdir()
    wanted, wanted_lse = attention(batch)
    for device in ("cpu", "cuda"):
        result = tmp_path / f"{device}.safetensors"
        subprocess.run([command, "run", case, "-o", result, "--device", device], check=True)
        found = read_safetensors(result)
        again = torch.frombuffer(bytearray(found["out"]), dtype=torch.bfloat16).reshape(rows, *out.shape[1:])
        again_lse = torch.frombuffer(bytearray(found["lse"]), dtype=torch.float32).reshape(rows, -1)
        check_close(again.double(), wanted, 3e-3)
        check_close(again_lse, wanted_lse, 1e-3)
        if device == "cuda":
            assert torch.equal(again, out[:rows].cpu())
            assert torch.equal(again_lse, lse[:rows].cpu())


def test_graph_captures_are_not_written(tmp_path, capfd):
    args = on_gpu(Batch(dim=128))
    extattn.extend_attention(*args)
    graph = torch.cuda.CUDAGraph()
    with extattn.capture(tmp_path, call=1), torch.cuda.graph(graph):
        out = extattn.extend_attention(*args)
    graph.replay()
    assert torch.equal(out, extattn.extend_attention(*args))
    assert not list(tmp_path.iterdir())
    assert "goes into a CUDA graph" in capfd.readouterr().err


@both_sizes
def test_overhead(shape):
    """At most 15 microseconds a call on the host: the best of many short repetitions, the queue never full."""
    args = on_gpu(Batch(**shape))
    out = extattn.extend_attention(*args)
    best = float("inf")
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            extattn.extend_attention(*args, out=out)
        best = min(best, (time.perf_counter() - start) / 50)
    print(f"overhead on a GPU: {best * 1e6:.2f} us a call")
    assert best <= 15e-6, f"{best * 1e6:.2f} us a call"


def test_cupy():
    cupy = pytest.importorskip("cupy")
    batch = Batch(dim=64, dtype=np.float16)
    args = on_gpu(batch, torch.float16)
    out = extattn.extend_attention(*[cupy.from_dlpack(x) for x in args])
    assert isinstance(out, cupy.ndarray)
    assert (cupy.asnumpy(out) == extattn.extend_attention(*args).cpu().numpy()).all()


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    args = on_gpu(Batch(dim=64), torch.bfloat16)
    out = extattn.extend_attention(*[jax.dlpack.from_dlpack(x) for x in args])
    assert (np.asarray(out, np.float32) == extattn.extend_attention(*args).float().cpu().numpy()).all()
