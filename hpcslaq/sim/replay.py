"""A journal through a fresh coordinator: the same events must give the same commands.

That is the promise that a restart of rank 0 rests on, so it can be checked on any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hpcslaq.core.commands import Command
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.events import Event, RunStarted
from hpcslaq.core.policy import Policy
from hpcslaq.errors import InvalidTransition
from hpcslaq.policies.registry import make_policy
from hpcslaq.record.codec import Entry, Kind
from hpcslaq.record.journal import read_journal
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

#: Differences that are kept; all are counted.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a command of the journal and that of the replay part."""

    #: Number of the event, counted from 1, and its time (s since run start).
    event_number: int
    now: float
    event: str
    #: Commands in words; "" where there is none.
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay."""

    num_events: int
    num_commands: int
    #: Events that the coordinator refused; as in the run, no command follows them.
    num_refused: int
    num_differences: int
    differences: tuple[Difference, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every command was the same."""
        return self.num_differences == 0


def replay_run(run: RunDirectory) -> Replay:
    """Replay the journal of a run; raises NotFoundError, RunDirectoryError, JournalError."""
    plan = RunPlan.read(run)
    policy = make_policy(plan.policy, **plan.policy_options)
    return replay(read_journal(run.journal), policy, plan.round_s)


def replay(entries: Iterator[Entry], policy: Policy, round_s: float) -> Replay:
    """Feed the events to a fresh coordinator and compare the commands.

    The last event before a restart, or of the journal, may have lost commands when the writer
    died: there it is enough that those recorded are the first of the replayed ones.
    """
    coordinator = Coordinator(policy, round_s)
    differences: list[Difference] = []
    num_events = num_commands = num_refused = num_differences = 0
    for now, event, recorded, is_last in _steps(entries):
        num_events += 1
        num_commands += len(recorded)
        replayed: Sequence[Command]
        try:
            replayed = coordinator.handle(event, now)
        except InvalidTransition:
            num_refused += 1
            replayed = ()
        if is_last:
            replayed = replayed[: len(recorded)]
        for old, new in zip_longest(recorded, replayed):
            if old != new:
                num_differences += 1
                if len(differences) < MAX_SHOWN:
                    kind = type(event).__name__
                    differences.append(Difference(num_events, now, kind, _words(old), _words(new)))
    return Replay(num_events, num_commands, num_refused, num_differences, tuple(differences))


def _steps(entries: Iterator[Entry]) -> Iterator[tuple[float, Event, list[Command], bool]]:
    """(now, event, its commands, whether it is the last one of an incarnation)."""
    event: tuple[float, Event] | None = None
    commands: list[Command] = []
    for kind, now, item in entries:
        if kind is Kind.COMMAND:
            commands.append(item)  # type: ignore[arg-type]
            continue
        if event is not None:
            yield (*event, commands, isinstance(item, RunStarted))
        event, commands = (now, item), []  # type: ignore[assignment]
    if event is not None:
        yield (*event, commands, True)


def _words(command: Command | None) -> str:
    return "" if command is None else repr(command)
