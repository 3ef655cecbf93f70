"""Round trips and refusals of the codec."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core import commands, events
from hpcslaq.core.jobs import Convergence, JobSpec
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.record.codec import Codec, CodecError, Kind, LineCodec, journal_codec

SPEC = JobSpec(
    name="a-l2=0.1",
    model="logreg",
    data="census",
    num_chunks=16,
    max_epochs=3,
    target_loss=0.1,
    convergence=Convergence.SUPERLINEAR,
    options={"l2": 0.1, "hidden": [256, 10], "solver": "lbfgs", "bias": True, "cap": None},
    utility=UtilityCurve(UtilityKind.SIGMOID, 50.0, 12.5, 0.1 + 0.2),
)
USAGE = {"compute": 1.25, "reduce": 0.1 + 0.2}
DIGEST = "0" * 64
SAMPLES = [
    SPEC,
    UtilityCurve(UtilityKind.TABLE, values=(3.0, 0.1), every_s=2.5),
    events.RunStarted({1: "a", 12: "b"}),
    events.JobSubmitted(SPEC),
    events.ArrivalsClosed(),
    events.JobCancelled("a", "enough"),
    events.WeightChanged("a", 2.5),
    events.GroupDissolved("a", 2),
    events.GroupFormed("a", 3, (1, 2), 10, 0.25),
    events.ProgressReported("a", 3, 11, (0.3, 5e-324, -0.0, 1e308), 1, 0.5, 2),
    events.CheckpointWritten("a", 12, 1, 4096, 0.01),
    events.CheckpointFailed("a", 12, "No space left on device"),
    events.JobPaused("a", 3, 12),
    events.JobFinished("a", 3, 20, 2, 0.1, DIGEST, DIGEST, "epochs", {"auc": 0.99}),
    events.JobStopped("a", 3),
    events.JobFailed("a", 3, 2, "bad\n\u2028 line", "Traceback \ud800"),
    events.RankReleased(2, "a", 3, USAGE),
    events.RankLost(2, "killed"),
    events.RoundElapsed(),
    events.StopRequested("SIGUSR1"),
    commands.Start("a", 1, (1, 2)),
    commands.Regroup("a", 2, (1, 3), (3,), (2,)),
    commands.Pause("a", 2, 1),
    commands.Stop("a", 2, 1),
    commands.Dismiss("a", 2, (3,)),
    commands.Reject("a", "full"),
    commands.Note("a", {"what": "accepted", "plan": [[3, 20, [[0, 2]]]], "cost": 0.1}),
    commands.WakeAt(12.5),
    commands.Shutdown(75),
]


class Colour(Enum):
    RED = "red"
    ONE = 1


@dataclass(frozen=True, slots=True)
class Inner:
    value: float


@dataclass(frozen=True, slots=True)
class Other:
    value: str


@dataclass(frozen=True, slots=True)
class Outer:
    either: Inner | Other
    row: tuple[int, str]
    colour: Colour = Colour.RED
    maybe: int | None = None
    table: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    anything: object = None


@dataclass(frozen=True, slots=True)
class Message:
    rank: int
    event: events.Event


def outer_codec() -> Codec:
    return Codec([Outer, Inner, Other])


def test_the_samples_cover_every_event_and_every_command() -> None:
    present = {type(sample) for sample in SAMPLES}
    assert present == {JobSpec, UtilityCurve, *get_args(events.Event), *get_args(commands.Command)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_every_event_and_command_comes_back_equal(sample: object) -> None:
    codec = journal_codec()
    back = codec.decode(codec.encode(sample))
    assert back == sample
    assert type(back) is type(sample)
    assert codec.encode(sample).isascii()


@pytest.mark.parametrize("sample", SAMPLES[2:], ids=lambda s: type(s).__name__)
def test_a_line_names_its_kind_and_has_no_line_end_inside(sample: object) -> None:
    lines = LineCodec()
    line = lines.to_line(0.1, sample)  # type: ignore[arg-type]
    assert "\n" not in line
    kind = Kind.EVENT if isinstance(sample, get_args(events.Event)) else Kind.COMMAND
    assert lines.from_line(line) == (kind, 0.1, sample)
    assert json.loads(line)[kind.value]["type"] == type(sample).__name__


@given(st.lists(st.floats(), max_size=8), st.floats(0, 1e9))
@settings(max_examples=200, deadline=None)
def test_floats_come_back_bit_for_bit(losses: list[float], seconds: float) -> None:
    codec = journal_codec()
    report = events.ProgressReported("a", 1, 1, tuple(losses), 0, seconds, 1)
    back = codec.decode(codec.encode(report))

    def bits(values: tuple[float, ...]) -> list[bytes]:
        return [b"nan" if math.isnan(v) else struct.pack("<d", v) for v in values]

    assert bits(back.losses) == bits(report.losses)
    assert bits((back.seconds,)) == bits((seconds,))


def test_nested_classes_unions_rows_and_enums_come_back_equal() -> None:
    codec = outer_codec()
    for outer in (
        Outer(Inner(math.inf), (1, "x")),
        Outer(Other("y"), (-5, ""), Colour.ONE, 7, {-3: (1.0, 2.0)}, {"k": [1, None, "s"]}),
    ):
        assert codec.decode(codec.encode(outer)) == outer


def test_a_message_may_hold_any_event() -> None:
    codec = journal_codec()
    codec.register(Message)
    for sample in SAMPLES[2:]:
        if isinstance(sample, get_args(events.Event)):
            assert codec.decode(codec.encode(Message(3, sample))) == Message(3, sample)
    with pytest.raises(CodecError, match=r"Message\.event: expected RunStarted \|"):
        codec.encode(Message(3, commands.WakeAt(1.0)))  # type: ignore[arg-type]


def test_a_left_out_field_takes_its_default() -> None:
    assert outer_codec().from_json(
        {"type": "Outer", "either": {"type": "Other", "value": "y"}, "row": [1, "x"]}
    ) == Outer(Other("y"), (1, "x"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, r"unknown field 'extra' \(valid: either, row"),
        ({"row": [1]}, "row: expected 2 values"),
        ({"row": [True, "x"]}, "row: expected an integer, found True"),
        ({"row": "ab"}, "row: expected 2 values"),
        ({"either": {"type": "Outer"}}, r"either: expected Inner \| Other"),
        ({"either": {"type": "Inner", "value": "1"}}, r"either: Inner\.value: expected a number"),
        ({"either": {"type": []}}, "either: expected Inner"),
        ({"either": None}, "either: expected Inner"),
        ({"colour": "green"}, r"colour: expected a Colour, found 'green' \(valid: red, 1\)"),
        ({"colour": True}, "colour: expected a Colour, found True"),
        ({"maybe": 1.0}, "maybe: expected an integer, found 1.0"),
        ({"table": {"01": []}}, "key '01' is not an integer"),
        ({"table": {"x": []}}, "key 'x' is not an integer"),
        ({"table": {"1": [None]}}, "table: expected a number, found None"),
        ({"table": []}, "table: expected an object"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change: dict[str, object], message: str) -> None:
    codec = outer_codec()
    data = codec.to_json(Outer(Inner(1.0), (1, "x"))) | change
    with pytest.raises(CodecError, match=message):
        codec.from_json(data)


def test_a_missing_field_an_unknown_type_and_a_non_object_are_refused() -> None:
    codec = outer_codec()
    with pytest.raises(CodecError, match="Outer: missing either, row"):
        codec.from_json({"type": "Outer"})
    for data in ({"type": "Popen"}, {"type": []}, {"type": None}, {}):
        with pytest.raises(CodecError, match="type: unknown"):
            codec.from_json(data)
    with pytest.raises(CodecError, match="expected an object"):
        codec.from_json([1])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nul",
        b"{",
        b'{"type": "Inner", "value": NaN}',
        b'{"type": "Inner", "value": Infinity}',
        b'{"type": "Inner", "value": 1e999}',
        b'{"type": "Inner", "value": ' + b"1" * 400 + b"}",
        b'{"type": "Inner", "value": ' + b"1" * 5000 + b"}",
        b'{"type": "Inner", "value": [[]]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_hostile_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(CodecError):
        outer_codec().decode(text)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode()))
@settings(max_examples=300, deadline=None)
def test_random_bytes_give_a_codec_error_only(data: bytes) -> None:
    with pytest.raises(CodecError):
        LineCodec().from_line(data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(SAMPLES),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_a_changed_field_is_refused_or_read_as_the_same_type(
    sample: object, data: st.DataObject
) -> None:
    codec = journal_codec()
    text = codec.to_json(sample)
    key = data.draw(st.sampled_from(sorted(text)))
    text[key] = data.draw(_json)
    try:
        back = codec.from_json(text)
    except CodecError:
        return
    assert codec.from_json(codec.to_json(back)) == back or "nan" in str(back)


def test_an_impossible_job_is_refused_with_the_field() -> None:
    codec = journal_codec()
    data = codec.to_json(SPEC) | {"num_chunks": 0}
    with pytest.raises(CodecError, match="JobSpec: num_chunks: 0 < 1"):
        codec.from_json(data)
    with pytest.raises(CodecError, match=r"JobSpec: name: '\.\./x'"):
        codec.from_json(codec.to_json(SPEC) | {"name": "../x"})


@pytest.mark.parametrize(
    "bad",
    [
        commands.WakeAt("soon"),  # type: ignore[arg-type]
        events.WeightChanged(3, 1.0),  # type: ignore[arg-type]
        events.RunStarted({"1": "a"}),  # type: ignore[dict-item]
        commands.Start("a", 1, 5),  # type: ignore[arg-type]
        events.JobSubmitted("a"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_the_wrong_type_is_not_written(bad: object) -> None:
    with pytest.raises(CodecError, match=type(bad).__name__):
        journal_codec().encode(bad)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": object()}, b"x", 1j])
def test_options_without_a_json_form_are_not_written(value: object) -> None:
    with pytest.raises(CodecError):
        outer_codec().encode(Outer(Inner(1.0), (1, "x"), anything=value))


def test_lines_of_other_shapes_are_refused() -> None:
    lines = LineCodec()
    good = json.loads(lines.to_line(1.0, events.RoundElapsed()))
    for bad in (
        {"now": 1.0},
        {**good, "more": 1},
        {"now": 1.0, "command": good["event"]},
        {"now": 1.0, "thing": good["event"]},
        {"now": "soon", "event": good["event"]},
        {"now": "inf", "event": good["event"]},
        {"now": 1.0, "event": {"type": "JobSpec"}},
    ):
        with pytest.raises(CodecError):
            lines.from_line(json.dumps(bad))
    with pytest.raises(CodecError, match="neither an event nor a command"):
        lines.to_line(1.0, SPEC)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="not finite"):
        lines.to_line(math.nan, events.RoundElapsed())


def test_only_registered_dataclasses_with_new_names_are_taken() -> None:
    codec = Codec()
    with pytest.raises(TypeError, match="not a dataclass"):
        codec.register(int)
    codec.register(Inner)
    codec.register(Inner)
    with pytest.raises(ValueError, match="'Inner' is registered"):
        codec.register(dataclass(type("Inner", (), {})))
    with pytest.raises(CodecError, match="Other is not a registered class"):
        codec.encode(Other("x"))


def test_fields_of_unsupported_types_are_refused_at_first_use() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: set[int]

    Odd.__annotations__["value"] = set[int]
    with pytest.raises(TypeError, match="not supported"):
        Codec([Odd]).encode(Odd(set()))
