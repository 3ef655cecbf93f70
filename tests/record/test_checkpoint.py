"""Checkpoint files: exact, atomic, and refused when anything is wrong with them."""

from __future__ import annotations

import errno
import math
import os
import random
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcslaq.errors import CheckpointError
from hpcslaq.record import checkpoint, files
from hpcslaq.record.checkpoint import Scalar, read_checkpoint, write_checkpoint
from hpcslaq.record.codec import dump_json

Arrays = dict[str, np.ndarray[Any, Any]]

META: dict[str, Scalar] = {"iteration": 7, "loss": 0.1 + 0.2, "job": "a\n\u2028", "is_done": False}


def sample() -> Arrays:
    rng = np.random.default_rng(5)
    return {
        "w": rng.standard_normal((3, 4)),
        "opt/m.1": rng.standard_normal(5).astype(np.float32),
        "count": np.array(2**63 + 1, dtype=np.uint64),
        "mask": np.array([True, False, True]),
        "empty": np.zeros((0, 3), dtype=np.int16),
    }


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].shape == array.shape
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        assert found[name].tobytes() == native.tobytes()


def is_identical(path: Path, arrays: Arrays, meta: dict[str, Scalar]) -> bool:
    """Whether a file reads as written; False where it is refused; fails where it differs."""
    try:
        found, found_meta = read_checkpoint(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return False
    assert_same(found, arrays)
    assert found_meta == meta
    return True


def test_arrays_and_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    size = write_checkpoint(path, sample(), META)
    assert size == path.stat().st_size
    arrays, meta = read_checkpoint(path)
    assert_same(arrays, sample())
    assert meta == META
    assert [type(value) for value in meta.values()] == [int, float, str, bool]
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["c.h5"]


_arrays = st.dictionaries(
    st.text(min_size=1, max_size=6),
    st.sampled_from(["?", "i1", "<i4", ">i8", "u2", "<f2", ">f4", "f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    ),
    max_size=3,
)
_scalars = st.text() | st.integers() | st.booleans() | st.floats()


@given(_arrays, st.dictionaries(st.text(max_size=6), _scalars, max_size=4))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_arrays_and_values_come_back(
    tmp_path: Path, arrays: Arrays, meta: dict[str, Scalar]
) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, arrays, meta)
    found, found_meta = read_checkpoint(path)
    assert_same(found, arrays)
    assert list(map(repr, found_meta.items())) == list(map(repr, meta.items()))


def test_arrays_in_any_memory_layout_come_back(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    arrays = {"f": np.asfortranarray(base), "slice": base[::2, ::-3], "t": base.T}
    write_checkpoint(tmp_path / "c.h5", arrays, {})
    found, _ = read_checkpoint(tmp_path / "c.h5")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_non_finite_values_and_elements_come_back(tmp_path: Path) -> None:
    meta: dict[str, Scalar] = {"best": math.inf, "worst": -math.inf, "text": "inf"}
    write_checkpoint(tmp_path / "c.h5", {"w": np.array([np.nan, -np.inf])}, meta)
    arrays, found = read_checkpoint(tmp_path / "c.h5")
    assert found == meta
    assert_same(arrays, {"w": np.array([np.nan, -np.inf])})


@pytest.mark.parametrize(
    ("arrays", "meta", "message"),
    [
        ({"x": np.array(["text"])}, {}, "'x' has elements of type"),
        ({"x": np.array([object()])}, {}, "'x' has elements of type object"),
        ({"x": np.zeros(2, dtype=complex)}, {}, "'x' has elements of type complex128"),
        ({"": np.zeros(2)}, {}, "array name '' is not a text"),
        ({"x" * 201: np.zeros(2)}, {}, "is not a text of 1-200 characters"),
        ({}, {"x": [1]}, "value 'x' is a list"),
        ({}, {"x": None}, "value 'x' is a NoneType"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
    tmp_path: Path, arrays: Arrays, meta: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c.h5", arrays, meta)
    assert os.listdir(tmp_path) == []


def test_a_file_cut_at_any_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, sample(), META)
    whole = path.read_bytes()
    for size in [*range(0, len(whole) - 1, 61), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:size])
        assert not is_identical(path, sample(), META), size
    path.write_bytes(whole)
    assert is_identical(path, sample(), META)


def flip_bits(path: Path, positions: Iterator[tuple[int, int]]) -> tuple[int, int]:
    """Flip one bit at a time; returns how often the file was refused and how often not."""
    arrays, meta = sample(), META
    write_checkpoint(path, arrays, meta)
    whole = path.read_bytes()
    refused = identical = 0
    for byte, bit in positions:
        if byte >= len(whole):
            continue
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << bit
        path.write_bytes(bytes(damaged))
        if is_identical(path, arrays, meta):
            identical += 1
        else:
            refused += 1
    return refused, identical


def test_one_flipped_bit_anywhere_is_refused_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(11)
    positions = ((byte, rng.randrange(8)) for byte in range(0, 10_000, 4))
    refused, identical = flip_bits(tmp_path / "c.h5", positions)
    # Most of a small file is unused space of HDF5's; what is used must be refused.
    assert refused > 200
    assert refused + identical > 700


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_single_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    positions = ((byte, bit) for byte in range(10_000) for bit in range(8))
    refused, _ = flip_bits(tmp_path / "c.h5", positions)
    assert refused > 8 * 800


def test_a_flipped_bit_in_the_data_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, {"w": np.arange(1000.0)}, {})
    whole = bytearray(path.read_bytes())
    whole[whole.index(np.arange(400.0, 410.0).tobytes())] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(CheckpointError, match=r"c\.h5: expected array 'w' with CRC 0x.*found 0x"):
        read_checkpoint(path)


@given(st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_overwritten_ranges_are_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, sample(), META)
    whole = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=200))
    whole[start : start + len(junk)] = junk
    path.write_bytes(bytes(whole))
    is_identical(path, sample(), META)


def test_missing_empty_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    with pytest.raises(CheckpointError, match=r"c\.h5: expected a file, found none"):
        read_checkpoint(path)
    for content in (b"", b"hello", b"\x89HDF\r\n\x1a\n", b"\0" * 5000):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="expected an HDF5 file with checksums"):
            read_checkpoint(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"c\.h5: cannot be read: Is a directory"):
        read_checkpoint(path)


def test_an_hdf5_file_of_the_old_format_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w", libver="earliest") as file:
        file["w"] = np.zeros(3)
    with pytest.raises(CheckpointError, match="with checksums"):
        read_checkpoint(tmp_path / "c.h5")


def test_a_file_of_another_kind_or_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, {}, {}, kind="hpcslaq model")
    expected = "expected format 'hpcslaq checkpoint', found 'hpcslaq model'"
    with pytest.raises(CheckpointError, match=expected):
        read_checkpoint(path)
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    write_checkpoint(path, {}, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="expected version 1, found 2"):
        read_checkpoint(path)


def craft(path: Path, edit: Callable[[h5py.File], None], manifest: object = None) -> None:
    """A well-formed file, except for what `edit` does; `manifest` with its right CRC."""
    write_checkpoint(path, {"w": np.arange(4.0)}, {"k": 1})
    with h5py.File(path, "r+", libver=("v108", "latest")) as file:
        if manifest is not None:
            text = dump_json(manifest).encode()
            del file["manifest"], file["complete"]
            file.create_dataset("manifest", data=np.frombuffer(text, dtype=np.uint8))
            file.create_dataset("complete", data=np.uint32(zlib.crc32(text)))
        edit(file)


def replace(name: str, **options: Any) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **options)

    return edit


def link(name: str, target: object) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return edit


def external_storage(file: h5py.File) -> None:
    del file["arrays/w"]
    file.create_dataset("arrays/w", (4,), "<f8", external=[("/etc/passwd", 0, 32)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "<f8")
    layout[:] = h5py.VirtualSource("other.h5", "w", (4,))
    del file["arrays/w"]
    file.create_virtual_dataset("arrays/w", layout)


def null_space(file: h5py.File) -> None:
    del file["arrays/w"]
    file["arrays/w"] = h5py.Empty("<f8")


HOSTILE: dict[str, Callable[[h5py.File], None]] = {
    "soft link": link("arrays/w", h5py.SoftLink("/manifest")),
    "dangling soft link": link("arrays/w", h5py.SoftLink("/nowhere")),
    "external link": link("arrays/w", h5py.ExternalLink("other.h5", "/arrays/w")),
    "external group": link("arrays", h5py.ExternalLink("other.h5", "/arrays")),
    "soft group": link("arrays", h5py.SoftLink("/")),
    "soft manifest": link("manifest", h5py.SoftLink("/complete")),
    "object references": replace("arrays/w", shape=(4,), dtype=h5py.ref_dtype),
    "strings": replace("arrays/w", shape=(4,), dtype=h5py.string_dtype()),
    "compound": replace("arrays/w", shape=(4,), dtype=[("a", "<f8"), ("b", "<i4")]),
    "other type": replace("arrays/w", data=np.arange(4, dtype="<i8")),
    "big-endian": replace("arrays/w", data=np.arange(4, dtype=">f8")),
    "other shape": replace("arrays/w", data=np.arange(4.0).reshape(2, 2)),
    "compressed": replace("arrays/w", data=np.arange(4.0), compression="gzip"),
    "chunked": replace("arrays/w", data=np.arange(4.0), chunks=(2,)),
    "never written": replace("arrays/w", shape=(4,), dtype="<f8"),
    "external storage": external_storage,
    "virtual": virtual,
    "null space": null_space,
    "group for array": lambda file: replace_by_group(file, "arrays/w"),
    "array for group": replace("arrays", data=np.arange(4.0)),
    "one more array": lambda file: file.create_dataset("arrays/x", data=np.arange(4.0)) and None,
    "one more object": lambda file: file.create_dataset("x", data=np.arange(4.0)) and None,
    "missing array": lambda file: file["arrays"].__delitem__("w"),
    "missing manifest": lambda file: file.__delitem__("manifest"),
    "missing complete": lambda file: file.__delitem__("complete"),
    "wide complete": replace("complete", data=np.arange(4, dtype="<u4")),
    "manifest of rank 2": replace("manifest", data=np.zeros((2, 2), dtype="|u1")),
    "scalar manifest": replace("manifest", data=np.uint8(3)),
}


def replace_by_group(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_group(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_crafted_file_is_refused(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other.h5", {"w": np.arange(4.0)}, {})
    craft(tmp_path / "c.h5", HOSTILE[name])
    assert not is_identical(tmp_path / "c.h5", {}, {})


def manifest(**change: object) -> dict[str, object]:
    crc = zlib.crc32(np.arange(4.0).tobytes())
    return {
        "format": "hpcslaq checkpoint",
        "version": 1,
        "meta": {"k": 1},
        "arrays": {"w": ["<f8", [4], crc]},
        **change,
    }


def test_the_crafted_manifest_is_accepted_when_it_is_right(tmp_path: Path) -> None:
    craft(tmp_path / "c.h5", lambda file: None, manifest())
    assert is_identical(tmp_path / "c.h5", {"w": np.arange(4.0)}, {"k": 1})


@pytest.mark.parametrize(
    "bad",
    [
        [],
        {},
        manifest(version=True),
        manifest(version="1"),
        manifest(format=1),
        manifest(meta=[]),
        manifest(meta={"k": None}),
        manifest(meta={"k": {"a": 1}}),
        manifest(meta={"k": ["1e5"]}),
        manifest(arrays=[]),
        manifest(arrays={"w": []}),
        manifest(arrays={"w": ["O", [4], 0]}),
        manifest(arrays={"w": ["<f8", [-4], 0]}),
        manifest(arrays={"w": ["<f8", [4.0], 0]}),
        manifest(arrays={"w": ["<f8", [2**61, 2**61], 0]}),
        manifest(arrays={"w": ["<f8", [2**61, 0], 0]}),
        manifest(arrays={"w": ["<f8", [10**9], 0]}),
        manifest(arrays={"w": ["<f8", [1] * 33, 0]}),
        manifest(arrays={"w": ["<f8", [4], "x"]}),
        manifest(arrays={"": ["<f8", [4], 0]}),
    ],
    ids=lambda bad: str(bad)[-40:],
)
def test_a_crafted_manifest_is_refused(tmp_path: Path, bad: object) -> None:
    craft(tmp_path / "c.h5", lambda file: None, bad)
    assert not is_identical(tmp_path / "c.h5", {}, {})


def test_a_declared_size_beyond_the_file_is_refused_before_allocation(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    shape = [2**40]
    craft(
        path,
        replace("arrays/w", shape=shape, dtype="<f8"),
        manifest(arrays={"w": ["<f8", shape, 0]}),
    )
    with pytest.raises(CheckpointError, match=r"expected at most .* found 8796093022208 bytes"):
        read_checkpoint(path)
    craft(path, replace("manifest", shape=shape, dtype="|u1"))
    with pytest.raises(CheckpointError, match="'manifest' of 1099511627776 bytes"):
        read_checkpoint(path)


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writing beyond this size fails, as on a full disk or over a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 100, 2000, 70_000, 81_000])
def test_a_write_that_the_system_cuts_short_keeps_the_old_file(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, sample(), META)
    with file_size_limit(limit), pytest.raises(CheckpointError, match="File too large"):
        write_checkpoint(path, {"w": np.ones(10_000)}, {})
    assert is_identical(path, sample(), META)
    assert os.listdir(tmp_path) == ["c.h5"]
    write_checkpoint(path, {"w": np.ones(10_000)}, {})
    assert is_identical(path, {"w": np.ones(10_000)}, {})


@pytest.mark.parametrize(
    ("function", "number"),
    [("fsync", errno.ENOSPC), ("fsync", errno.EDQUOT), ("open", errno.EROFS)],
)
def test_a_full_or_read_only_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    path = tmp_path / "c.h5"
    write_checkpoint(path, sample(), META)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, function, fail)
    with pytest.raises(CheckpointError, match=f"cannot be written: {os.strerror(number)}"):
        write_checkpoint(path, {"w": np.ones(10)}, {})
    monkeypatch.undo()
    assert is_identical(path, sample(), META)
    assert os.listdir(tmp_path) == ["c.h5"]


def test_a_missing_directory_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory"):
        write_checkpoint(tmp_path / "no" / "c.h5", {}, {})


def test_threads_write_at_once_without_harm(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for round_number in range(8):
            arrays = {"w": np.full(3000, number * 100.0 + round_number)}
            own = tmp_path / f"{number}.h5"
            write_checkpoint(own, arrays, {"n": number})
            write_checkpoint(tmp_path / "shared.h5", arrays, {})
            assert_same(read_checkpoint(own)[0], arrays)
            read_checkpoint(tmp_path / "shared.h5")

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, number) for number in range(4)]:
            future.result()
    assert sorted(os.listdir(tmp_path)) == ["0.h5", "1.h5", "2.h5", "3.h5", "shared.h5"]


_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from hpcslaq.errors import CheckpointError
from hpcslaq.record.checkpoint import write_checkpoint
path = Path(sys.argv[1])
arrays = {"a": np.arange(300.0)}
for limit in (0, 1, 100, 2000, 3000, 4000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_checkpoint(path, arrays, {})
    except CheckpointError as error:
        assert "cannot be written: File too large" in str(error), error
    else:
        raise AssertionError(limit)
print("alive")
"""


def test_a_full_disk_costs_the_file_and_not_the_process(tmp_path):
    # HDF5 itself would end the process with a segmentation fault at some of these sizes.
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path / "x.h5")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "alive\n", (done.returncode, done.stderr)
    assert list(tmp_path.iterdir()) == []
