"""Arguments that are no arrays: what is taken for a number or a switch, and the refusal of what is not.

Nothing is rounded, wrapped or taken for true: 1.9 is no integer, "no" no boolean, and an array of one element no
number, as its value may change, or lie on a GPU.
"""

from __future__ import annotations

import numbers
import operator
import sys
from typing import Any, Optional

from extattn._library import InvalidError

MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1
_MAX_WORDS = 40  # of a text that a refusal repeats
_MAX_BITS = 64  # of an integer that it does


def described(x: Any) -> str:
    """What was found, for one line: the value where that is short, else what kind of thing it is."""
    if isinstance(x, int) and x.bit_length() > _MAX_BITS:  # Python refuses to write the longest
        return f"an integer of {x.bit_length()} bits"
    if x is None or isinstance(x, (bool, int, float, str, bytes)):
        text = repr(x)
        return text if len(text) <= _MAX_WORDS else text[:_MAX_WORDS] + "..."
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_array(x: Any) -> bool:
    """Of any framework, one without dimensions too; numpy's scalars are numbers."""
    if hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__array_interface__") and hasattr(x, "__setitem__")  # numpy's before 1.22


def boolean(name: str, x: Any) -> bool:
    if x is True or x is False:
        return bool(x)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.bool_):
        return bool(x)
    raise InvalidError(f"{name}: found {described(x)}, allowed True or False")


def integer(name: str, x: Any, least: int, most: int) -> int:
    found: int = x
    if type(x) is not int:
        if isinstance(x, bool) or is_array(x) or not hasattr(x, "__index__"):
            raise InvalidError(f"{name}: found {described(x)}, allowed an integer")
        found = operator.index(x)
    if least <= found <= most:
        return found
    raise InvalidError(f"{name}: found {described(found)}, allowed {least} to {most}")


def number(name: str, x: Any) -> float:
    if type(x) is float:
        return x
    if isinstance(x, numbers.Real) and not isinstance(x, bool) and not is_array(x):
        try:
            return float(x)
        except OverflowError:
            raise InvalidError(f"{name}: found {described(x)}, allowed what a float holds") from None
    raise InvalidError(f"{name}: found {described(x)}, allowed a number: a float or an int, no array")


def scale(name: str, x: Any) -> float:
    """None: 1."""
    return 1.0 if x is None else number(name, x)


def text(name: str, x: Any) -> Optional[str]:
    if x is None or isinstance(x, str):
        return x
    raise InvalidError(f"{name}: found {described(x)}, allowed a str, or None")


__all__ = ["MAX_I32", "MAX_I64", "boolean", "described", "integer", "is_array", "number", "scale", "text"]
