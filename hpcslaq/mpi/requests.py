"""Requests from outside as events: rank 0 looks into the inbox twice a second.

A request is checked against what the coordinator knows before it becomes an event, because
an illegal event must never enter the journal. Its file moves to `done/` only after the
journal holds the event, and one that is read again after a crash is recognised.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from hpcslaq.core import events as ev
from hpcslaq.core.coordinator import Coordinator
from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import HpcslaqError
from hpcslaq.record.inbox import (
    CancelRequest,
    CloseRequest,
    Inbox,
    Request,
    RequestError,
    SubmitRequest,
    WeightRequest,
)
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory

log = logging.getLogger(__name__)

#: Time between two looks into the inbox, s.
LOOK_EVERY_S = 0.5
#: After so long with requests, those that are left wait for the next tick of rank 0, s.
_LOOK_S = 5e-3
#: Time between two signs of life of a run that may have nothing to say for hours, s.
_SIGN_EVERY_S = 5.0


class RequestDesk:
    """Turns the files of a run's inbox into events of its coordinator."""

    def __init__(self, run: RunDirectory, plan: RunPlan, coordinator: Coordinator) -> None:
        self._inbox = Inbox(run.inbox)
        self._journal = run.journal
        self._coordinator = coordinator
        self._planned = {job.name for job in plan.jobs}
        #: Directory of the prepared data by job, of jobs that came by a request.
        self._data_paths: dict[str, str] = {}
        #: Jobs that were accepted and are not in the journal: a crash tore off its end.
        self.missing: list[JobSpec] = []
        #: The run stays open until a CloseRequest.
        self.is_serving = plan.is_serving
        #: Requests whose files cannot be moved yet: not to be carried out again.
        self._stuck: set[str] = set()
        self._look_at = self._sign_at = 0.0
        for request in self._inbox.accepted():
            self._note(request)
            if isinstance(request, SubmitRequest) and request.spec.name not in coordinator.jobs:
                self.missing.append(request.spec)
        self._note_unmoved()

    def _note_unmoved(self) -> None:
        """Remember requests that are in the journal, but whose files were not moved in time.

        Their jobs are started before the first look into the inbox.
        """
        try:
            waiting = self._inbox.poll(sys.maxsize)
        except OSError:
            return  # `events` says so again and again
        for _, request in waiting:
            if isinstance(request, SubmitRequest) and request.spec.name in self._coordinator.jobs:
                self._note(request)

    def data_path(self, job: str) -> str | None:
        """Directory of the prepared data of a job that came by a request; None: a planned one."""
        return self._data_paths.get(job)

    def events(self, now: float) -> Iterator[tuple[str, ev.Event]]:
        """Names of requests and the events that they mean (`now` : s since run start).

        The caller hands in each event, then calls `done` with the name. The inbox is listed at
        most once each `LOOK_EVERY_S`, and what is not through after `_LOOK_S` comes at the next
        call: a flood delays nothing else.
        """
        until = time.monotonic() + _LOOK_S
        is_early = time.monotonic() < self._look_at
        if is_early and not self._inbox.has_more:
            return
        if not is_early:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            self._give_sign()
        waiting = self._waiting(until)
        following = next(waiting, None)
        while following is not None:
            name, request = following
            event = self._checked(name, request, now)
            following = next(waiting, None)
            if isinstance(event, ev.JobSubmitted) and self._also_submits(following, event.spec):
                event = replace(event, is_followed=True)
            if event is not None:
                yield name, event

    def _waiting(self, until: float) -> Iterator[tuple[str, Request]]:
        """Requests, one file read at a time, until there are none or it is late (monotonic)."""
        while True:
            try:
                yield from self._inbox.poll(1, self._stuck)
            except OSError as error:
                log.warning("the inbox cannot be read: %s", error)
                return
            if not self._inbox.has_more or time.monotonic() > until:
                return

    def _also_submits(self, following: tuple[str, Request] | None, before: JobSpec) -> bool:
        """Whether the next request will surely become a submission, too."""
        if following is None or not isinstance(following[1], SubmitRequest):
            return False
        request = following[1]
        try:
            event = self._submitted(request.spec, request.data_path, 0.0)
        except RequestError:
            return False
        return event is not None and request.spec.name != before.name

    def _give_sign(self) -> None:
        """Touch the journal of a run that may have nothing to say for hours."""
        if self.is_serving and self._look_at > self._sign_at:
            self._sign_at = self._look_at + _SIGN_EVERY_S
            with suppress(OSError):
                os.utime(self._journal)

    def _checked(self, name: str, request: Request, now: float) -> ev.Event | None:
        """The event of a request; None where it is refused or in the journal already."""
        try:
            event = self._event(request, now)
        except HpcslaqError as error:
            log.warning("request %s refused: %s", name, error)
            self._move(name, partial(self._inbox.refuse, reason=str(error)))
            return None
        self._note(request)
        if event is None:
            self.done(name)
        return event

    def done(self, name: str) -> None:
        """The event of this request is in the journal."""
        self._move(name, self._inbox.done)

    def keep(self, name: str) -> None:
        """The journal cannot be written now: the file of this request stays where it is.

        It is not carried out again; the next start of the run recognises it.
        """
        self._stuck.add(name)

    def _move(self, name: str, move: Callable[[str], None]) -> None:
        """Move a request's file; a full disk must not end the run."""
        try:
            move(name)
        except OSError as error:
            log.warning("request %s cannot be moved: %s", name, error)
            self._stuck.add(name)

    def _note(self, request: Request) -> None:
        """Remember what the events do not say."""
        if isinstance(request, SubmitRequest):
            self._data_paths[request.spec.name] = request.data_path
        elif isinstance(request, CloseRequest):
            self.is_serving = False

    def _event(self, request: Request, now: float) -> ev.Event | None:
        """The event; None where it is in the journal already. Raises RequestError."""
        match request:
            case SubmitRequest(spec, data_path):
                return self._submitted(spec, data_path, now)
            case CancelRequest(job, reason):
                self._check_live(job)
                return ev.JobCancelled(job, reason or "cancelled by the user")
            case WeightRequest(job, weight):
                self._check_live(job)
                try:
                    return ev.WeightChanged(job, weight)
                except ValueError as error:
                    raise RequestError(str(error)) from None
            case CloseRequest():
                return None if self._coordinator.is_closed else ev.ArrivalsClosed()

    def _submitted(self, spec: JobSpec, data_path: str, now: float) -> ev.Event | None:
        known = self._coordinator.jobs.get(spec.name)
        # Taken in by an earlier start of the run that died before it moved the file.
        if known is not None and replace(known.spec, arrival_s=spec.arrival_s) == spec:
            return None
        if known is not None or spec.name in self._planned:
            raise RequestError(f"there is a job {spec.name!r} in this run already")
        if not Path(data_path).is_dir():
            raise RequestError(f"{spec.name}: its prepared data are not there: {data_path}")
        return ev.JobSubmitted(replace(spec, arrival_s=now))

    def _check_live(self, job: str) -> None:
        record = self._coordinator.jobs.get(job)
        if record is None:
            later = ", it arrives later" if job in self._planned else ""
            names = ", ".join(islice(self._coordinator.jobs, 20))
            raise RequestError(f"there is no job {job!r} in this run{later} (there are: {names})")
        if record.state.is_final:
            raise RequestError(f"{job}: is {record.state.value} already")
