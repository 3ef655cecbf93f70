"""Labels: what is a class and what a target, and how classes are numbered."""

from __future__ import annotations

import numpy as np
import pytest

from hpcslaq.data.blocks import row_number
from hpcslaq.data.labels import MAX_CLASSES, LabelCollector, Labels
from hpcslaq.errors import DataError


def judge(*blocks: object, task: str = "auto") -> Labels:
    collector = LabelCollector("file", row_number, task)
    for block in blocks:
        collector.add(np.asarray(block))
    return collector.finish()


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([-1, 1, 1, -1], (-1, 1)),
        ([1.0, 2.0, 10.0] * 3, (1, 2, 10)),
        ([True, False], (0, 1)),
        (["dog", "cat", "dog"], ("cat", "dog")),
        (["10", "9", "9", "10"], (9, 10)),
        (["1", "1.0", "2", "02"], (1, 2)),
    ],
)
def test_classes_are_numbered_in_their_natural_order(values: list, classes: tuple) -> None:
    labels = judge(values[:2], values[2:])
    assert labels.task == "classification" and labels.classes == classes
    number = {label: i for i, label in enumerate(classes)}
    wanted = [number[v if not isinstance(v, str) or v.isalpha() else int(float(v))] for v in values]
    np.testing.assert_array_equal(labels.values, wanted)


def test_the_task_is_guessed_by_documented_rules() -> None:
    assert judge([0.5, 1.5, 2.5, 0.5]).task == "regression"
    assert judge(np.arange(51).repeat(9)).task == "regression"
    assert judge(np.arange(50).repeat(9)).task == "classification"
    assert judge([3, 1, 2, 4, 4]).task == "regression"
    assert judge([3, 1, 2, 4, 4], task="classification").classes == (1, 2, 3, 4)
    assert judge([0, 1], task="regression").classes == ()


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([1.0, 1.0], "auto", "all labels are 1"),
        (["a", "a"], "auto", "all labels are a"),
        ([0.0, 1.0, 0.5], "classification", r"row 2 \(counted from 0\): the class label 0.5"),
        (["0", "1", "0.5"], "classification", r"row 2 .*0.5 is not a whole number"),
        (["a", "b"], "regression", "labels are text: 'a'"),
        ([0.0, np.nan], "auto", "row 1 .*the label is nan"),
        ([0.0, np.inf], "regression", "row 1 .*the label is inf"),
        (["a", " "], "auto", "row 1 .*the label is empty"),
        (np.arange(MAX_CLASSES + 1), "classification", "10001 different class labels"),
        ([f"id{i}" for i in range(MAX_CLASSES + 1)], "auto", "more than 10000 different text"),
    ],
)
def test_labels_that_do_not_fit_are_refused(values: object, task: str, message: str) -> None:
    with pytest.raises(DataError, match=f"file: .*{message}"):
        judge(values, task=task)


def test_the_place_of_a_bad_label_counts_the_blocks_before() -> None:
    with pytest.raises(DataError, match="row 5 "):
        judge([1.0, 2.0, 3.0], [1.0, 2.0, np.nan])


def test_text_and_numbers_do_not_mix() -> None:
    with pytest.raises(DataError, match="some labels are text"):
        judge([1.0, 2.0], ["a", "b"])
