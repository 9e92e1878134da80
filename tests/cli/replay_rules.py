"""The rules of `extattn replay`, read off its manual page once more: a trace's counts as JSON.

    replay_rules.py TRACE BUDGET [REQUESTS]
"""

import json
import sys

with open(sys.argv[1]) as file:
    requests = [json.loads(line) for line in file]
budget = int(sys.argv[2])
requests = requests[: int(sys.argv[3]) if len(sys.argv) > 3 else None]

cached = set()
batches = [[]]
for request in requests:
    prefix = 0
    for block in request["hash_ids"]:
        if block not in cached:
            break
        prefix += 512
    prefix = min(prefix, request["input_length"] - 1)
    cached.update(request["hash_ids"])
    while prefix < request["input_length"]:
        room = budget - sum(extend for _, extend in batches[-1])
        if room == 0:
            batches.append([])
            room = budget
        extend = min(room, request["input_length"] - prefix)
        batches[-1].append((prefix, extend))
        prefix += extend

pieces = [piece for batch in batches for piece in batch]
json.dump(
    {
        "batches": len(batches),
        "sequences": len(pieces),
        "new_tokens": sum(extend for _, extend in pieces),
        "prefix_tokens": sum(prefix for prefix, _ in pieces),
        "visible_pairs": sum(extend * prefix + extend * (extend + 1) // 2 for prefix, extend in pieces),
    },
    sys.stdout,
)
