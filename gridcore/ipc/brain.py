"""The shell around the brain: an inbox of events, one timer, and the way out for commands.

It reads the clock, keeps inventories together until their last page, and publishes; it decides
nothing. A broken invariant ends the process: the launcher starts another, the edges re-state.
"""

import logging
from collections.abc import Callable

from msgspec import structs

from gridcore.clock import monotonic_ns
from gridcore.core import invariants
from gridcore.core.commands import AnyCommand, PublishNote
from gridcore.core.events import AnyEvent, GatewayRestated, JobSubmitted, RunningLease
from gridcore.core.machine import SchedulerCore
from gridcore.core.notes import Note, Verb
from gridcore.core.settings import Settings
from gridcore.core.snapshot import ServiceView, Snapshot
from gridcore.ids import Epoch, PeerId, ids_digest
from gridcore.ipc.link import ChangeKind, PeerChange
from gridcore.ipc.messages import (
    Beat,
    FromScheduler,
    GatewayInventory,
    RestateRequest,
    ServiceExited,
    ServicesStatus,
    StateReply,
    StateRequest,
    ToScheduler,
)
from gridcore.ipc.translate import GATEWAY, SUPERVISOR, event_of, event_of_change, message_of
from gridcore.units import NS_PER_S

log = logging.getLogger("gridcore.scheduler")

SNAPSHOT_EVERY_NS = NS_PER_S
CHECK_JOBS_MAX = 1000
"""The full invariant check looks at every job: with more of them it waits for a quieter second."""
MISMATCHES_MAX = 2
"""Beats that disagree in a row before a gateway is asked for its inventory: one may cross a
message on its way."""

_LOG_LEVELS = {
    Verb.FAIL: logging.WARNING,
    Verb.BREAKER: logging.WARNING,
    Verb.THRASH: logging.WARNING,
}


class Brain:
    """
    Args:
        send: puts a message on the control link; False if the peer cannot be reached.
        silent_ms: how long ago a peer was heard last; None for one that is not on the link.
        publish_note, publish_snapshot: the event socket.
    """

    def __init__(
        self,
        settings: Settings,
        epoch: Epoch,
        *,
        send: Callable[[PeerId, FromScheduler], bool],
        silent_ms: Callable[[PeerId], int | None],
        publish_note: Callable[[Note], None],
        publish_snapshot: Callable[[Snapshot], None],
    ) -> None:
        self.core = SchedulerCore(settings, epoch)
        self._send = send
        self._silent_ms = silent_ms
        self._publish_note = publish_note
        self._publish_snapshot = publish_snapshot
        self._inbox: list[AnyEvent] = []
        self._asked_state: list[tuple[PeerId, str]] = []
        self._pages: dict[PeerId, tuple[list[JobSubmitted], list[RunningLease]]] = {}
        self._mismatches: dict[PeerId, int] = {}
        self._pids: dict[PeerId, int] = {}
        self._services: tuple[ServiceView, ...] = ()
        self._published_revision = -1
        self._published_ns = 0

    # --- facts in --------------------------------------------------------------------

    def on_message(self, peer: PeerId, message: ToScheduler) -> None:
        if isinstance(message, ServiceExited) and self._has_successor(message):
            return
        event = event_of(peer, message)
        if event is not None:
            self._inbox.append(event)
            return
        match message:
            case GatewayInventory():
                self._take_page(peer, message)
            case StateRequest():
                self._asked_state.append((peer, message.request_id))
            case ServicesStatus():
                self._services = message.services
            case Beat() if peer.startswith(GATEWAY):
                self._compare(peer, message)
            case _:
                pass

    def _has_successor(self, exited: ServiceExited) -> bool:
        """A late proof of death must not end what the next process of that name runs."""
        pid = self._pids.get(exited.peer)
        return None not in (pid, exited.pid) and pid != exited.pid

    def on_peer(self, change: PeerChange) -> None:
        self._pids[change.peer] = change.pid
        text = f"{change.peer} {change.kind}" + (f": {change.detail}" if change.detail else "")
        log.info("%s (pid %d)", text, change.pid)
        self._publish_note(Note(verb=Verb.PEER, text=text, data={"peer": change.peer}))
        self._pages.pop(change.peer, None)
        self._mismatches.pop(change.peer, None)
        event = event_of_change(change)
        if event is not None:
            self._inbox.append(event)
        if change.kind is ChangeKind.BACK and change.role == SUPERVISOR:
            self._send(change.peer, RestateRequest())

    def _take_page(self, peer: PeerId, page: GatewayInventory) -> None:
        jobs, leases = self._pages.setdefault(peer, ([], []))
        jobs.extend(page.jobs)
        leases.extend(page.leases)
        if page.last_page:
            del self._pages[peer]
            restated = GatewayRestated(gateway=peer, jobs=tuple(jobs), leases=tuple(leases))
            self._inbox.append(restated)

    def _compare(self, peer: PeerId, beat: Beat) -> None:
        """Does a gateway hold the jobs and leases that the brain believes it does?"""
        state = self.core.state
        jobs = [job.job_id for job in state.jobs.values() if job.gateway == peer]
        leases = [lease.lease_id for lease in state.leases.values() if lease.gateway == peer]
        ours = (len(jobs), len(leases), ids_digest([*jobs, *leases]))
        if self._inbox or ours == (beat.jobs, beat.leases, beat.digest):
            self._mismatches.pop(peer, None)
            return
        self._mismatches[peer] = self._mismatches.get(peer, 0) + 1
        if self._mismatches[peer] >= MISMATCHES_MAX:
            log.warning(
                "%s holds %d jobs and %d leases, %d and %d are known here: asking again",
                *(peer, beat.jobs, beat.leases, ours[0], ours[1]),
            )
            self._mismatches.pop(peer)
            self._send(peer, RestateRequest())

    # --- commands out ----------------------------------------------------------------

    def plan(self) -> None:
        """Let the brain see the inbox and carry out what it answers."""
        inbox, self._inbox = self._inbox, []
        commands = self.core.handle(inbox, monotonic_ns())
        # What others wait for leaves first; the log and the events tell of it afterwards.
        for command in commands:
            if not isinstance(command, PublishNote):
                self._carry_out(command)
        for command in commands:
            if isinstance(command, PublishNote):
                self._tell(command.note)
        for peer, request_id in self._asked_state:
            self._send(peer, StateReply(request_id=request_id, snapshot=self.snapshot()))
        self._asked_state.clear()

    def next_deadline_ns(self) -> int | None:
        """When ``plan`` or ``publish_if_changed`` is due without any message."""
        due_ns = self.core.next_deadline_ns()
        if self.core.state.revision == self._published_revision:
            return due_ns
        publish_ns = self._published_ns + SNAPSHOT_EVERY_NS
        return publish_ns if due_ns is None else min(due_ns, publish_ns)

    def publish_if_changed(self) -> None:
        """A snapshot at most once a second, if anything happened since the last."""
        revision = self.core.state.revision
        due_ns = self._published_ns + SNAPSHOT_EVERY_NS
        if revision != self._published_revision and monotonic_ns() >= due_ns:
            self.publish()

    def publish(self) -> None:
        state = self.core.state
        if len(state.jobs) <= CHECK_JOBS_MAX:
            invariants.check(state)
        self._published_revision, self._published_ns = state.revision, monotonic_ns()
        self._publish_snapshot(self.snapshot())

    def snapshot(self) -> Snapshot:
        return self.core.snapshot(
            tuple(
                structs.replace(service, last_beat_ms=self._silent_ms(PeerId(service.name)))
                for service in self._services
            )
        )

    def _tell(self, note: Note) -> None:
        level = _LOG_LEVELS.get(note.verb, logging.INFO)
        log.log(level, "%-8s %-14s %s", note.verb, note.model_id or note.card_id or "", note.text)
        self._publish_note(note)

    def _carry_out(self, command: AnyCommand) -> None:
        addressed = message_of(command)
        assert addressed is not None
        peer, message = addressed
        if not self._send(peer, message):
            # The link tells who is lost; what was meant for it is stated anew when it is back.
            log.warning("%s cannot be reached: %s dropped", peer, type(message).__name__)
