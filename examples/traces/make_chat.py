#!/usr/bin/env python3
"""Makes chat.jsonl: what a small chat service might send to prefill in one busy minute.

A few dozen people talk to one assistant. All conversations start with the same system
prompt; a turn's prompt is everything said so far and a new message, so most of it is in
the prefix cache already. Some people paste a document. Nothing here is recorded from
anyone: lengths and times come from the generator below.

    python3 make_chat.py > chat.jsonl

One line a turn: when it arrives (ms), the tokens of its prompt and of the answer, and the
ids of the prompt's blocks of 512 tokens. A block has the id of an earlier one exactly if
it and all before it hold the same tokens."""

import json
import sys

BLOCK = 512
SYSTEM_PROMPT = 1216  # instructions and the tools' descriptions
PEOPLE = 12
MINUTE_MS = 60_000


class Random:
    """The same numbers on every Python: a 64-bit linear congruential generator (Knuth's MMIX)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def between(self, low, high):
        """Short ones are more common than long ones."""
        return low + min(self.below(high - low + 1) for _ in range(2))


def conversation(random, person):
    """The turns of one person: (arrival, prompt tokens, answer tokens)."""
    now = random.below(MINUTE_MS * 2 // 3)
    tokens = SYSTEM_PROMPT
    turns = []
    while now < MINUTE_MS and len(turns) < 5:
        tokens += random.between(600, 1800) if person % 4 == 0 and not turns else random.between(15, 160)
        answer = random.between(40, 420)
        turns.append((now, tokens, answer))
        tokens += answer
        now += 25 * answer + random.between(2_000, 15_000)  # reading it, typing the next message
    return turns


def blocks(person, tokens):
    """What tells a prompt's blocks apart: the system prompt's own ones are everybody's."""
    for start in range(0, tokens, BLOCK):
        end = min(start + BLOCK, tokens)
        yield (None if end <= SYSTEM_PROMPT else person, start, end)


def main():
    random = Random(2026)
    turns = [(*turn, person) for person in range(PEOPLE) for turn in conversation(random, person)]
    ids = {}
    for arrival, tokens, answer, person in sorted(turns):
        line = {
            "timestamp": arrival,
            "input_length": tokens,
            "output_length": answer,
            "hash_ids": [ids.setdefault(block, len(ids)) for block in blocks(person, tokens)],
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
