"""Chunked prefill with a paged cache in torch: a prompt of 1000 tokens in chunks of at most 300, beside a short
prompt, each chunk attending to what the chunks before it left in the cache. The result is bit for bit that of the
prompt in one piece.

    python chunked_prefill.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import torch

import extattn

Q_HEADS, KV_HEADS, DIM, PAGE, PAGES = 8, 2, 128, 16, 128


class Cache:
    """Pages of one layer's keys and values, handed out as sequences grow."""

    def __init__(self, device: str) -> None:
        self.k = torch.zeros(PAGES, PAGE, KV_HEADS, DIM, dtype=torch.bfloat16, device=device)
        self.v = torch.zeros_like(self.k)
        self.free = torch.randperm(PAGES).tolist()
        self.slots: dict[int, list[int]] = {}  # of each sequence, one a token, in order

    def append(self, sequence: int, k: torch.Tensor, v: torch.Tensor) -> None:
        slots = self.slots.setdefault(sequence, [])
        first = len(slots)
        for position in range(first, first + len(k)):
            page = self.free.pop() if position % PAGE == 0 else slots[-1] // PAGE
            slots.append(page * PAGE + position % PAGE)
        new = torch.tensor(slots[first:], device=k.device)
        self.k.view(-1, KV_HEADS, DIM)[new] = k
        self.v.view(-1, KV_HEADS, DIM)[new] = v


def indptr(lengths: list[int], device: str) -> torch.Tensor:
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return ends.to(torch.int32).to(device)


def prefill(prompts: list[dict[str, torch.Tensor]], chunk: int, device: str) -> list[torch.Tensor]:
    """Attention of whole prompts, at most chunk tokens of each a step."""
    cache = Cache(device)
    done = [0] * len(prompts)
    results: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(at < len(prompt["q"]) for at, prompt in zip(done, prompts)):
        batch = [i for i, prompt in enumerate(prompts) if done[i] < len(prompt["q"])]
        new = [min(chunk, len(prompts[i]["q"]) - done[i]) for i in batch]
        q, k, v = (torch.cat([prompts[i][x][done[i] : done[i] + n] for i, n in zip(batch, new)]) for x in "qkv")
        slots = [slot for i in batch for slot in cache.slots.get(i, [])]
        out = extattn.extend_attention(
            q,
            k,
            v,
            cache.k,
            cache.v,
            indptr(new, device),
            indptr([done[i] for i in batch], device),
            torch.tensor(slots, dtype=torch.int32, device=device),
        )
        for i, n, part, k_part, v_part in zip(batch, new, out.split(new), k.split(new), v.split(new)):
            cache.append(i, k_part, v_part)
            results[i].append(part)
            done[i] += n
    return [torch.cat(parts) for parts in results]


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    def prompt(tokens: int) -> dict[str, torch.Tensor]:
        heads = {"q": Q_HEADS, "k": KV_HEADS, "v": KV_HEADS}
        return {x: torch.randn(tokens, n, DIM, dtype=torch.bfloat16, device=device) for x, n in heads.items()}

    prompts = [prompt(1000), prompt(77)]
    whole = prefill(prompts, 1000, device)
    chunked = prefill(prompts, 300, device)
    same = all(torch.equal(a, b) for a, b in zip(whole, chunked))
    verdict = "same bits" if same else "DIFFERENT"
    print(f"{device}: prompts of 1000 and 77 tokens in chunks of 300: {verdict} as in one piece")

    q, k, v = (prompts[0][x].float().movedim(0, 1) for x in "qkv")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    error = ((chunked[0].float() - wanted.movedim(0, 1)).norm() / wanted.norm()).item()
    print(f"beside torch's attention in f32: relative difference {error:.1e}, allowed 3e-3")
    return 0 if same and error < 3e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
