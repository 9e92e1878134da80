"""bench/peers.py as far as it goes without a GPU: the suites made small, and stand-ins for others' libraries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
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
    wanted = peers.loop_peer(case, sets)
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
    monkeypatch.setattr(peers, "fa3_interface", lambda: fake)
    check(peers, case_of(peers), peers.fa3_peer, "packed")
    check(peers, case_of(peers, prefix=7), peers.fa3_peer, "paged")
    check(peers, case_of(peers, prefix=7, slots="ordered"), peers.fa3_peer, "paged")


def test_torch_operators(peers, monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_cudnn_attention_forward", cudnn_attention_forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_attention_forward)
    others = peers.gpu_peers(None)
    check(peers, case_of(peers), others["cudnn"], "packed, K and V repeated")
    check(peers, case_of(peers), others["fa2"], "packed")


def test_a_peer_that_cannot_run_says_why_in_a_line(peers):
    """On a CPU none of them can. None keeps the next from being measured."""
    case = case_of(peers, dtype="bf16")
    sets = [peers.make_tensors(case, "cpu", 0)]
    args = types.SimpleNamespace(device="cpu", warm_up=0, repeats=1)

    def failing(_case, _sets):
        raise KeyError("a peer's own mistake")

    everyone = peers.gpu_peers(None) | {"failing": failing, "loop": peers.loop_peer}
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
    reference = peers.loop_peer(case, sets).calls[0]()
    for change, reason in ((lambda out: out * 1.1, "difference"), (lambda out: out[:, :2], "shape")):
        make = lambda case, sets, change=change: peers.Calls([lambda: reference], change)  # noqa: E731
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
        return {"host_ms": 0.1} | peers.summary(list(times))

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
        return peers.summary([1.0])

    monkeypatch.setattr(peers, "measure_on_gpu", measured)
    case = case_of(peers)
    sets = [peers.make_tensors(case, "cpu", 0)]
    args = types.SimpleNamespace(device="cuda", warm_up=0, repeats=1, pause=0.5)
    peers.check_and_measure(peers.loop_peer(case, sets), case, sets, args, None)
    assert done[-3:] == ["through", 0.5, "measured"]


@pytest.mark.parametrize(("call_ms", "graph"), [(0.1, None), (3, True), (3, "no: not in a graph")])
def test_calls_that_are_slow_on_the_host_are_captured(peers, monkeypatch, call_ms, graph):
    slept = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)

    def captured(run, copies):
        assert copies == 2
        if graph is not True:
            raise RuntimeError("not in a graph")
        return run

    runs = []
    monkeypatch.setattr(peers, "captured", captured)
    monkeypatch.setattr(peers, "time", types.SimpleNamespace(perf_counter=lambda: len(runs) * call_ms / 1e3))
    row = peers.measure_on_gpu(runs.append, 2, 1, 4, True)
    assert row.get("graph") == graph
    assert row["median_ms"] == 1.0
    assert row["host_ms"] == pytest.approx(call_ms)
    assert len(slept) == 1
    assert runs[-4:] == [1, 2, 3, 4]
