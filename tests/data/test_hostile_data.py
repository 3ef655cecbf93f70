"""Damaged data files of every format are read or refused in one line, in bounded memory."""

from __future__ import annotations

import gzip
import inspect
import io
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from hpcslaq.data.dataset import Dataset
from hpcslaq.data.formats import read_file
from hpcslaq.data.labels import LabelCollector
from hpcslaq.data.source import DataSource
from hpcslaq.data.spool import spool
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import HpcslaqError
from tests.hostile import damaged

X = np.arange(24.0).reshape(8, 3)
Y = np.arange(8) % 2
#: What a damaged file of some kilobytes may cost: blocks of rows and of lines are a few MB.
MAX_BYTES = 200 << 20


def in_memory(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def hdf5(**how: object) -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with h5py.File(buffer, "w") as file:
            file.create_dataset("X", data=X, **how)
            file["y"] = Y
            file["elsewhere"] = h5py.ExternalLink("other.h5", "/X")

    return in_memory(write)


def parquet() -> bytes:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"a": X[:, 0], "b": X[:, 1], "label": [f"c{n}" for n in Y]}
    return in_memory(lambda buffer: writer.write_table(arrow.table(columns), buffer))


_CSV = b'a,b,label\n1,2,x\n3,"4",y\n' + b"5,6,x\n" * 6
_LIBSVM = b"1 1:0.5 3:2 # note\n0 qid:3 2:1e3\n1\n0 1:1\n" * 2
SAMPLES: dict[str, list[bytes] | Callable[[], bytes]] = {
    "npy": [in_memory(lambda b: np.save(b, X)), in_memory(lambda b: np.save(b, X.T.copy().T))],
    "npz": [
        in_memory(lambda b: np.savez(b, X=X, y=Y)),
        in_memory(lambda b: np.savez_compressed(b, X=X, y=Y)),
        in_memory(lambda b: sparse.save_npz(b, sparse.csr_array(X))),
        in_memory(lambda b: sparse.save_npz(b, sparse.coo_array(X), compressed=False)),
    ],
    "csv": [_CSV, _CSV.replace(b",", b";"), gzip.compress(_CSV, mtime=0)],
    "libsvm": [_LIBSVM, gzip.compress(_LIBSVM, mtime=0)],
    "hdf5": [hdf5(), hdf5(chunks=(2, 3), compression="gzip", shuffle=True)],
    "parquet": parquet,
}


def read_all(path: Path, file_format: str) -> None:
    """What happens to a file before anything is in the cache."""
    source = DataSource(str(path), {"format": file_format})
    options = source.resolved()
    table = read_file(path, file_format, options, lambda stage, share: None)
    collector = LabelCollector(str(path), table.where, "auto")
    _, _, has_labels = spool(table, str(path), path.parent, collector)
    if has_labels:
        collector.finish()


@pytest.mark.parametrize("file_format", SAMPLES)
@given(data=st.data())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path: Path, file_format: str, data: st.DataObject
) -> None:
    samples = SAMPLES[file_format]
    samples = samples if isinstance(samples, list) else [samples()]
    whole = data.draw(st.sampled_from(samples))
    is_text = file_format in ("csv", "libsvm")
    path = tmp_path / "sample.bin"
    path.write_bytes(data.draw(damaged(whole, is_text=is_text)))
    tracemalloc.start()
    try:
        read_all(path, file_format)
    except HpcslaqError as error:
        assert str(path) in str(error)
        assert len(str(error)) < 1500
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_BYTES


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_description_of_prepared_data_is_read_or_refused(
    tmp_path: Path, load: Callable[..., Dataset], data: st.DataObject
) -> None:
    table = tmp_path / "t.csv"
    if not table.exists():
        table.write_bytes(_CSV)
    prepared = load(table).path
    meta = prepared / "meta.json"
    whole = meta.read_bytes()
    try:
        meta.write_bytes(data.draw(damaged(whole, is_text=True)))
        open_dataset(prepared, verify=True)
    except HpcslaqError as error:
        assert str(prepared) in str(error)
        assert "\n" not in str(error)
    finally:
        meta.write_bytes(whole)


#: Bytes of a file that declares, or unpacks to, far more than it holds.
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip of one line": ("csv", lambda: gzip.compress(b"1," * (100 << 20), 1)),
    "gzip of one libsvm line": ("libsvm", lambda: gzip.compress(b"1 " * (100 << 20), 1)),
    "wide csv": ("csv", lambda: b",".join([b"1"] * 3_000_000) + b"\n"),
    "sparse shape": (
        "npz",
        lambda: in_memory(
            lambda b: np.savez(
                b,
                format=np.array(b"csr"),
                shape=np.array([10**9, 10**9]),
                data=np.ones(1),
                indices=np.zeros(1, np.int32),
                indptr=np.zeros(2, np.int32),
            )
        ),
    ),
}

_IN_A_SMALL_SPACE = """
import resource, sys
from pathlib import Path
import hpcslaq.data.arrays
from hpcslaq.data.formats import read_file
from hpcslaq.data.labels import LabelCollector
from hpcslaq.data.source import DataSource
from hpcslaq.data.spool import spool
from hpcslaq.errors import HpcslaqError
exec(sys.argv[1])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
try:
    read_all(Path(sys.argv[2]), sys.argv[3])
except HpcslaqError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_in_a_small_space(
    tmp_path: Path, name: str
) -> None:
    file_format, make = BOMBS[name]
    path = tmp_path / "bomb.bin"
    path.write_bytes(make())
    source = inspect.getsource(read_all)
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_SMALL_SPACE, source, str(path), file_format],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith(f"refused: {path}"), done.stderr[-2000:]
