"""bench/peers.py as far as it goes without a GPU: the suites made small, and stand-ins for others' libraries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make test-python-torch installs it")
command = os.environ.get("EXTATTN_COMMAND")
if not command:
    pytest.skip("EXTATTN_COMMAND is not set: no command that lists the shapes", allow_module_level=True)

from extattn._library import lib  # noqa: E402

SOURCE = Path(os.environ.get("EXTATTN_SOURCE", Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", SOURCE / "bench" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module
    spec.loader.exec_module(module)
    return module


# ---- the program on a CPU ----------------------------------------------------------------------


def run(*options, check=True):
    program = [sys.executable, SOURCE / "bench" / "peers.py", "--command", command, "--library", lib._name]
    options = ["--device", "cpu", "--warm-up", "0", "--repeats", "1", *map(str, options)]
    return subprocess.run([*program, *options], check=check, capture_output=True, text=True)


SUITES = ["seed", "window", "mla", "prefix", "ragged", "chunks", "verify", "cpu"]


def test_every_suite_agrees_with_a_sequence_at_a_time(tmp_path):
    record = tmp_path / "record.json"
    suites = [option for suite in SUITES for option in ("--suite", suite)]
    answer = run(*suites, "--shrink", 1024, "--peer", "loop", "--json", record)
    assert " 0 disagreements" in answer.stdout
    cases = json.loads(record.read_text())["cases"]
    for suite in SUITES:
        listed = subprocess.run([command, "bench", suite, "--list"], check=True, capture_output=True, text=True)
        mine = [case for case in cases if case["suite"] == suite]
        assert len(mine) == len(json.loads(listed.stdout)["cases"])
    for case in cases:
        assert case["results"]["loop"]["difference"] < 1e-2
        assert case["times_over_ours"]["loop"] > 0
        assert "extends" not in case["case"]


def test_arguments():
    assert "allowed torch, loop" in run("--peer", "fa4", check=False).stderr
    quick = run("--suite", "prefix", "--suite", "chunks", "--quick", "--shrink", 2048)
    assert "4 cases, 0 disagreements" in quick.stdout


# ---- peers that stand in for others' libraries -------------------------------------------------


def case_of(peers, **changes):
    fields = {"dtype": "f32", "head_dim": 16, "head_dim_v": 16, "num_q_heads": 4, "num_kv_heads": 2, "window": 0,
              "seqs": 3, "prefix": 0, "extend": 5, "ragged": True, "shared_kv": False, "slots": "shuffled",
              "flop": 1e9, "bytes": 1e9, "extends": [1, 5, 3]}  # fmt: skip
    return peers.Case(**(fields | changes))


def attend(q, k, v):
    """One sequence, whose queries are its last tokens; groups of heads where K has fewer."""
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(len(q) // len(k), dim=0) for t in (k, v))
    position = torch.arange(q.shape[1]).unsqueeze(1) + k.shape[1] - q.shape[1]
    mask = torch.arange(k.shape[1]) <= position
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)


def packed(q, k, v, indptr):
    pieces = [slice(indptr[b], indptr[b + 1]) for b in range(len(indptr) - 1)]
    return torch.cat([attend(q[p], k[p], v[p]) for p in pieces])


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size):
    assert causal and window_size == (-1, -1) and max_seqlen_q == max_seqlen_k == 5
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    return packed(q, k, v, cu_seqlens_q), "lse"


def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, causal,
                            window_size):  # fmt: skip
    assert causal and window_size == (-1, -1) and max_seqlen_q == 5
    out = []
    for b, length in enumerate(cache_seqlens):
        pages = page_table[b, :length].long()
        new = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        out.append(attend(q[new], k_cache[pages, 0], v_cache[pages, 0]))
    return torch.cat(out)


def fa3_vllm_forward(q, k, v, k_new, v_new, q_v, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q,
                     seqused_k, max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin,
                     seqlens_rotary, q_descale, k_descale, v_descale, scale, causal, window_left, window_right, softcap,
                     rotary_interleaved, scheduler_metadata, num_splits, pack_gqa, sm_margin, s_aux, cp_world_size,
                     cp_rank, cp_tot_seqused_k):  # fmt: skip
    """vLLM's operator, by its order of arguments, in plain torch."""
    absent = (k_new, v_new, out, cu_seqlens_k_new, seqused_q, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin,
              seqlens_rotary, q_descale, k_descale, v_descale, scheduler_metadata, pack_gqa, s_aux,
              cp_tot_seqused_k)  # fmt: skip
    assert all(argument is None for argument in absent)
    assert causal is True and softcap == 0.0 and rotary_interleaved is False
    assert (num_splits, sm_margin, cp_world_size, cp_rank) == (0, 0, 1, 0)
    assert max_seqlen_q == 5 and isinstance(scale, float)
    assert window_right == (-1 if window_left == -1 else 0)
    assert (cu_seqlens_k is None) == (seqused_k is not None) == (page_table is not None)
    result = []
    for b in range(len(cu_seqlens_q) - 1):
        new = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        if page_table is None:
            keys, values = (t[cu_seqlens_k[b] : cu_seqlens_k[b + 1]] for t in (k, v))
        else:
            assert page_table.dtype == seqused_k.dtype == torch.int32
            keys, values = (t[page_table[b].long()].flatten(0, 1)[: seqused_k[b]] for t in (k, v))
            assert len(keys) <= max_seqlen_k
        queries = q[new]
        groups = q.shape[1] // k.shape[2 if page_table is not None else 1]
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (keys, values))
        scores = torch.einsum("ihd,jhd->hij", queries, keys)
        if q_v is not None:
            scores += torch.einsum("ihd,jhd->hij", q_v[new], values)
        position = torch.arange(len(queries)).unsqueeze(1) + len(keys) - len(queries)
        key = torch.arange(len(keys))
        hidden = key > position
        if window_left != -1:
            hidden |= key < position - window_left
        weights = (scores * scale).masked_fill(hidden, -torch.inf).softmax(-1)
        result.append(torch.einsum("hij,jhd->ihd", weights, values))
    return torch.cat(result), "lse", None, None


def cudnn_attention_forward(q, k, v, bias, cum_q, cum_k, max_q, max_k, logsumexp, dropout, causal, debug):
    assert bias is None and max_q == max_k == 5 and not logsumexp and dropout == 0.0 and causal and not debug
    if k.shape[1] != q.shape[1]:
        raise RuntimeError("no groups of heads\nand a trace")
    return packed(q, k, v, cum_q), None


def flash_attention_forward(q, k, v, cum_q, cum_k, max_q, max_k, dropout, causal, debug):
    assert max_q == max_k == 5 and dropout == 0.0 and causal and not debug
    return packed(q, k, v, cum_q), None


def check(peers, case, prepare, way):
    sets = [peers.make_tensors(case, "cpu", seed) for seed in range(2)]
    wanted = peers.torch_sdpa.loop_peer(case, sets)
    found = prepare(case, sets)
    for i in range(3):
        wanted.run(i)
        found.run(i)
    torch.testing.assert_close(found.result(), wanted.result())
    assert found.details() == {"way": way}


def test_flash_attention_3(peers, monkeypatch):
    fake = types.SimpleNamespace(
        flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=flash_attn_with_kvcache
    )
    monkeypatch.setattr(peers.fa3, "fa3_interface", lambda: fake)
    check(peers, case_of(peers), peers.fa3.fa3_peer, "packed")
    check(peers, case_of(peers, prefix=7), peers.fa3.fa3_peer, "paged")
    check(peers, case_of(peers, prefix=7, slots="ordered"), peers.fa3.fa3_peer, "paged")


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_flash_attention_3_of_vllm(peers, monkeypatch, page_size):
    monkeypatch.setattr(peers.fa3_vllm, "vllm_fa3_forward", lambda _path: fa3_vllm_forward)
    prepare = peers.gpu_peers(None, ("a file", "0"))["fa3_vllm" + (f"_{page_size}" if page_size > 1 else "")]
    way = f"pages of {page_size}"
    check(peers, case_of(peers, prefix=70, slots="ordered"), prepare, way)
    check(peers, case_of(peers, prefix=64, slots="ordered", window=9), prepare, way)
    latent = {"head_dim": 24, "num_kv_heads": 1, "shared_kv": True}
    check(peers, case_of(peers, prefix=70, slots="ordered", **latent), prepare, way)
    if page_size == 1:
        check(peers, case_of(peers), prepare, "packed")
        check(peers, case_of(peers, window=2), prepare, "packed")
        check(peers, case_of(peers, **latent), prepare, "packed")
        check(peers, case_of(peers, prefix=70), prepare, way)
    else:
        for case in (case_of(peers), case_of(peers, prefix=70)):
            with pytest.raises(peers.Unsupported, match="a prefix in ordered slots"):
                prepare(case, [])
    with pytest.raises(peers.Unsupported, match="head dimensions up to 256"):
        prepare(case_of(peers, head_dim=512, prefix=70, slots="ordered"), [])


def test_the_library_of_vllm(peers, monkeypatch, tmp_path):
    """The shared object itself, or the wheel that it is in; loaded once."""
    library, wheel = tmp_path / peers.fa3_vllm.VLLM_FA3, tmp_path / "vllm-1.2.3-cp38-abi3-linux_x86_64.whl"
    library.write_bytes(b"an object")
    assert peers.fa3_vllm.vllm_fa3_library(library) == (library, "_vllm_fa3_C.abi3.so sha256 c44b27339f50")
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("vllm/vllm_flash_attn/" + peers.fa3_vllm.VLLM_FA3, b"an object")
    path, version = peers.fa3_vllm.vllm_fa3_library(wheel)
    assert (path.read_bytes(), version) == (b"an object", "1.2.3")
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(torch.ops, "_vllm_fa3_C", types.SimpleNamespace(fwd="forward"), raising=False)
    assert [peers.fa3_vllm.vllm_fa3_forward(path) for _ in range(2)] == ["forward", "forward"]
    assert loaded == [str(path)]


def test_the_best_of_several_ways_is_named(peers):
    times = {"extattn": 2.0, "triton1": 9.0, "triton2": 8.0, "fa3": 5.0, "fa3_vllm": 4.0, "fa3_vllm_16": 3.0}
    rows = {name: {"median_ms": ms} for name, ms in times.items()} | {"fa3_vllm_64": {"unsupported": "why"}}
    assert peers.ratios(rows) == {"triton1": 4.5, "triton2": 4.0, "fa3": 2.5, "fa3_vllm": 2.0, "fa3_vllm_16": 1.5,
                                  "best triton": 4.0, "best fa3_vllm": 1.5}  # fmt: skip


def test_torch_operators(peers, monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_cudnn_attention_forward", cudnn_attention_forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_attention_forward)
    others = peers.gpu_peers(None, None)
    check(peers, case_of(peers), others["cudnn"], "packed, K and V repeated")
    check(peers, case_of(peers), others["fa2"], "packed")
    sets = [peers.make_tensors(case_of(peers), "cpu", 0)]
    assert "ends the process" in others["cudnn"](case_of(peers), sets).no_graph
    assert others["fa2"](case_of(peers), sets).no_graph == ""


def test_a_peer_that_cannot_run_says_why_in_a_line(peers):
    """On a CPU none of them can. None keeps the next from being measured."""
    case = case_of(peers, dtype="bf16")
    sets = [peers.make_tensors(case, "cpu", 0)]
    args = types.SimpleNamespace(device="cpu", warm_up=0, repeats=1)

    def failing(_case, _sets):
        raise KeyError("a peer's own mistake")

    everyone = peers.gpu_peers(None, None) | {"failing": failing, "loop": peers.torch_sdpa.loop_peer}
    reference = None
    rows = {}
    for name, prepare in everyone.items():
        rows[name], reference = peers.measure_peer(name, prepare, case, sets, args, reference)
    assert rows.pop("loop")["median_ms"] > 0
    for name, row in rows.items():
        assert set(row) == {"unsupported"}, name
        assert row["unsupported"] and "\n" not in row["unsupported"], name
    for name in ("cudnn", "fa2"):
        assert rows[name]["unsupported"].startswith("packed: ")
        assert "nested tensors, K and V repeated: " in rows[name]["unsupported"]
    ours, _ = peers.measure_peer("extattn", failing, case, sets, args, reference)
    assert "mistake" in ours["wrong"]


def test_a_wrong_result_is_marked(peers):
    case = case_of(peers)
    sets = [peers.make_tensors(case, "cpu", 0)]
    args = types.SimpleNamespace(device="cpu", warm_up=0, repeats=1)
    reference = peers.torch_sdpa.loop_peer(case, sets).calls[0]()
    for change, reason in ((lambda out: out * 1.1, "difference"), (lambda out: out[:, :2], "shape")):
        make = lambda case, sets, change=change: peers.torch_sdpa.Calls([lambda: reference], change)  # noqa: E731
        row, _ = peers.measure_peer("x", make, case, sets, args, reference)
        assert reason in row["wrong"]


# ---- timing ------------------------------------------------------------------------------------


class Event:
    """Stands in for a CUDA event; the time between two is a millisecond."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def elapsed_time(self, _last):
        return 1.0


def test_rounds_are_one_row(peers):
    case = types.SimpleNamespace(flop=3e9, bytes=6e6)

    def row(*times):
        return {"host_ms": 0.1} | peers.timing.summary(list(times))

    both = peers.with_round_before(peers.with_round_before(None, row(1.0, 5.0), case), row(3.0), case)
    assert (both["median_ms"], both["min_ms"], both["max_ms"]) == (3.0, 1.0, 5.0)
    assert (both["tflops"], both["gbytes_per_s"]) == (pytest.approx(1.0), pytest.approx(2.0))
    failed, wrong = {"unsupported": "why"}, row(1.0) | {"wrong": "why"}
    assert peers.with_round_before(both, failed, case) is failed
    assert peers.with_round_before(both, wrong, case) is wrong
    assert peers.with_round_before(wrong, both, case) is wrong


def test_a_turn_on_a_gpu_begins_with_a_rest(peers, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("through"))
    monkeypatch.setattr(peers, "time", types.SimpleNamespace(sleep=done.append))

    def measured(*_):
        done.append("measured")
        return peers.timing.summary([1.0])

    monkeypatch.setattr(peers.timing, "measure_on_gpu", measured)
    case = case_of(peers)
    sets = [peers.make_tensors(case, "cpu", 0)]
    args = types.SimpleNamespace(device="cuda", warm_up=0, repeats=1, pause=0.5)
    peers.check_and_measure(peers.torch_sdpa.loop_peer(case, sets), case, sets, args, None)
    assert done[-3:] == ["through", 0.5, "measured"]


@pytest.fixture
def timing(peers, monkeypatch):
    """measure_on_gpu on a GPU that is not there: what it ran, and how each may come out."""
    world = types.SimpleNamespace(runs=[], slept=[], call_ms=0.1, captures=0, spoilt=False, elapsed=lambda: 1.0)

    def captured(run, copies):
        assert copies == 2
        world.captures += 1
        if world.spoilt:
            raise RuntimeError("not in a graph\nand a trace")
        world.elapsed = lambda: 1.0
        return run

    clock = types.SimpleNamespace(perf_counter=lambda: len(world.runs) * world.call_ms / 1e3)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "elapsed_time", lambda *_: world.elapsed())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", world.slept.append)
    monkeypatch.setattr(peers.timing, "captured", captured)
    monkeypatch.setattr(peers.timing, "time", clock)
    args = types.SimpleNamespace(warm_up=1, repeats=4)
    world.measure = lambda no_graph="", ragged=False: peers.timing.measure_on_gpu(
        world.runs.append, 2, args, no_graph, ragged
    )
    return world


@pytest.mark.parametrize(("call_ms", "graph"), [(0.1, None), (3, True), (3, "no: not in a graph")])
def test_calls_that_are_slow_on_the_host_are_captured(timing, call_ms, graph):
    timing.call_ms, timing.spoilt = call_ms, graph != True  # noqa: E712
    row = timing.measure()
    assert row.get("graph") == graph
    assert row["median_ms"] == 1.0
    assert row["host_ms"] == pytest.approx(call_ms)
    assert len(timing.slept) == 1
    assert timing.runs[-4:] == [1, 2, 3, 4]


def test_ragged_batches_are_captured_at_once(timing):
    assert timing.measure(ragged=True)["graph"] is True
    assert (timing.captures, len(timing.slept)) == (1, 1)
    assert timing.measure("it crashes", ragged=True)["graph"] == "no: it crashes"
    assert timing.captures == 1


def test_times_that_differ_widely_are_measured_again_in_a_graph(timing):
    def uneven():
        times = iter([1.0, 40.0] * 20)
        timing.elapsed = lambda: next(times)

    uneven()
    row = timing.measure()
    assert (row["graph"], row["median_ms"], timing.captures) == (True, 1.0, 1)
    # Where it cannot be captured the times stay, for the tables to leave out.
    uneven()
    timing.spoilt = True
    row = timing.measure()
    assert (row["graph"], row["median_ms"], row["min_ms"]) == ("no: not in a graph", 20.5, 1.0)
    # A graph that is no better is not tried twice.
    uneven()
    timing.captures = 0
    row = timing.measure("it crashes", ragged=True)
    assert (row["graph"], row["median_ms"], timing.captures) == ("no: it crashes", 20.5, 0)
