"""Runs SGLang's own kernel tests with extattn in place of its Triton kernels:

    python tests/python/sglang_kernels.py TEST_FILE... [-- UNITTEST-OPTION...]

TEST_FILE is one of SGLang's (test/registered/attention/test_triton_attention_kernels.py of its repository). The
functions are replaced before the file is imported; at the end it says how many calls extattn ran and how many it
handed back, and fails when none was its own: a test that never came here proves nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import unittest
from collections import Counter
from typing import Any

import extattn.sglang

ran: Counter[str] = Counter()
handed_back: Counter[str] = Counter()


def counted(name: str, function: Any, counter: Counter[str]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counter[name] += 1
        return result

    return call


def main() -> int:
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    files = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    logging.basicConfig()
    replacements = extattn.sglang._REPLACEMENTS
    for name, function in list(replacements.items()):
        replacements[name] = counted(name, function, ran)
    with_fallback = extattn.sglang._with_fallback

    def watched(name: str, ours: Any, original: Any) -> Any:
        return with_fallback(name, ours, counted(name, original, handed_back))

    extattn.sglang._with_fallback = watched
    print("replaced:", ", ".join(extattn.sglang.install()))
    suite = unittest.TestSuite()
    for i, path in enumerate(files):
        spec = importlib.util.spec_from_file_location(f"sglang_test_{i}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    if options:  # names of tests that are to run
        suite = unittest.TestSuite(test for group in suite for test in group if test._testMethodName in options)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    print(f"by extattn: {dict(ran)}")
    print(f"handed back to SGLang: {dict(handed_back)}")
    if not ran["extend_attention_fwd"]:
        print("no call of extend_attention_fwd was extattn's", file=sys.stderr)
        return 1
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
