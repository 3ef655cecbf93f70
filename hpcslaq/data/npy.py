"""The header of an NPY file, checked before numpy believes its sizes."""

from __future__ import annotations

import io
import tokenize
from typing import IO

import numpy as np

#: A header of more bytes is none: that of an array of 32 dimensions has some hundreds.
_MAX_HEADER_BYTES = 2**16
#: What numpy raises on a damaged file; its header is a Python literal.
NPY_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
    EOFError,
    OSError,
)


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic], bool]:
    """(shape, dtype, is Fortran order) of an NPY file; the stream then stands at the values.

    Raises one of `NPY_ERRORS` where it is none.
    """
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): (2, np.lib.format.read_array_header_1_0),
        (2, 0): (4, np.lib.format.read_array_header_2_0),
    }
    if version not in readers:
        raise ValueError(f"NPY format version {version}")
    num_bytes, read_header = readers[version]
    size = stream.read(num_bytes)
    # numpy would ask for as much memory as the file says.
    if int.from_bytes(size, "little") > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {int.from_bytes(size, 'little'):,} bytes")
    text = stream.read(int.from_bytes(size, "little"))
    shape, is_fortran, dtype = read_header(io.BytesIO(size + text))
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError(f"shape {shape}")
    return shape, dtype, is_fortran
