"""Damage for files of any kind: what a disk, a network or an enemy does to bytes."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

#: Numbers that break counts, sizes and times.
NUMBERS = (
    "-1",
    "0",
    "1e999",
    "-1e308",
    "NaN",
    "Infinity",
    "9" * 25,
    "9" * 5000,
    "4294967296",
    "9223372036854775808",
    "1e-320",
    "true",
    "null",
    '""',
    "[]",
    "{}",
)
#: Texts that leave directories, end lines, end strings, or name code.
TEXTS = (
    "../../../../tmp/x",
    "/etc/passwd",
    "a\x00b",
    "\x1b[2J",
    "\n",
    '"',
    "'; --",
    "é\ud7ff",
    "x" * 300,
    "__import__('os').abort()",
    "\u2028",
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, *, is_text: bool = False) -> bytes:
    """The bytes after one to four of: a flip, a cut, a repetition, junk, an extreme number."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + draw(st.sampled_from([1, 8, 64])))))
        kind = draw(st.sampled_from(["flip", "cut", "drop", "repeat", "junk", "number", "text"]))
        if kind == "flip" and start < len(data):
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[start:]
        elif kind == "drop":
            del data[start:stop]
        elif kind == "repeat":
            data[start:start] = data[start:stop] * draw(st.integers(1, 20))
        elif kind == "junk":
            data[start:stop] = draw(st.binary(max_size=16))
        elif kind == "number" and not is_text:
            number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]))
            data[start : start + 8] = struct.pack("<Q", number)
        elif kind == "number":
            data[start:stop] = draw(st.sampled_from(NUMBERS)).encode()
        else:
            data[start:stop] = draw(st.sampled_from(TEXTS)).encode()
    return bytes(data)
