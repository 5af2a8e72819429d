"""A service's link to the scheduler: the loop and the socket around ``PeerLink``.

Whoever owns facts here states them again after every Welcome (``inventory``). That is why a
message that cannot leave is dropped: what it would have said is in the next inventory.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import gridcore
from gridcore.clock import monotonic_ns
from gridcore.errors import GridcoreError
from gridcore.ids import Epoch, PeerId, new_boot_id
from gridcore.ipc.alarm import Alarm, run_together
from gridcore.ipc.codec import BadFrameError, BadFrames, decode_from_scheduler, encode
from gridcore.ipc.link import (
    Deliver,
    FrameArrived,
    LinkAction,
    LinkDown,
    LinkUp,
    PeerLink,
    SayHello,
    SendBeat,
    SendFailed,
    Stop,
    TimePassed,
)
from gridcore.ipc.messages import (
    Beat,
    EnvelopeToScheduler,
    FromScheduler,
    Goodbye,
    RestateRequest,
    ToScheduler,
)
from gridcore.ipc.sockets import ControlClient, Sent

_log = logging.getLogger("gridcore.ipc")
_SCHEDULER = PeerId("scheduler")


class LinkRejectedError(GridcoreError):
    """The scheduler does not take this process; trying again cannot help."""


class Peer:
    """One named end of the control link, up exactly while ``epoch`` is set.

    Args:
        on_message: what the scheduler says; called in its order, from the loop. Requests to
            re-state are answered here.
        on_link: True once the inventory has been sent, False when the link is lost.
        inventory: all facts this process owns, made anew at every call.
        beat: what to say once a second, for a peer that adds facts to it.
    """

    def __init__(
        self,
        *,
        name: PeerId,
        role: str,
        endpoint: Path,
        on_message: Callable[[FromScheduler], None],
        on_link: Callable[[bool], None],
        inventory: Callable[[], Iterable[ToScheduler]],
        beat: Callable[[], Beat] | None = None,
    ) -> None:
        self.name = name
        self.boot_id = new_boot_id()
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_link = on_link
        self._inventory = inventory
        self._beat = beat or Beat
        self._link = PeerLink(
            role=role,
            boot_id=self.boot_id,
            pid=os.getpid(),
            version=gridcore.__version__,
            now_ns=monotonic_ns(),
        )
        self._socket: ControlClient | None = None
        self._alarm = Alarm()
        self._pending: deque[LinkAction] = deque()
        self._bad_frames = BadFrames()
        self._told_up = False

    @property
    def epoch(self) -> Epoch | None:
        """The scheduler's incarnation while the link is up."""
        return self._link.epoch

    @property
    def dropped(self) -> dict[str, int]:
        """Frames that were not delivered, by why."""
        return {**self._link.dropped, "undecodable": self._bad_frames.total()}

    def send(self, message: ToScheduler) -> bool:
        """Send now, from the loop; False when the link is down and the message dropped."""
        envelope = self._link.stamp(message)
        return envelope is not None and self._transmit(envelope)

    async def run(self) -> None:
        """Keep the link until cancelled; ``close()`` afterwards.

        Raises:
            LinkRejectedError: the scheduler refuses this process.
        """
        self._socket = ControlClient(self._endpoint, self.name)
        try:
            await run_together(self._read(self._socket), self._watch_time())
        finally:
            self._alarm.cancel()

    async def close(self, goodbye: str) -> None:
        """Say why this process goes, and close the socket."""
        if self._socket is None:
            return
        self.send(Goodbye(cause=goodbye))
        self._socket.close()
        self._socket = None

    async def _read(self, socket: ControlClient) -> None:
        while True:
            for frames in await socket.receive_batch():
                now_ns = monotonic_ns()
                try:
                    envelope = decode_from_scheduler(frames[0])
                except BadFrameError as error:
                    self._bad_frames.add(_SCHEDULER, error, now_ns)
                    continue
                self._pending += self._link.handle(FrameArrived(envelope), now_ns)
                self._act()
            self._rearm()

    async def _watch_time(self) -> None:
        while True:
            self._pending += self._link.handle(TimePassed(), monotonic_ns())
            self._act()
            self._rearm()
            await self._alarm.wait()

    def _act(self) -> None:
        while self._pending:
            match self._pending.popleft():
                case Deliver(RestateRequest()):
                    self._restate()
                case Deliver(message):
                    self._on_message(message)
                case SendBeat():
                    self.send(self._beat())
                case SayHello(envelope):
                    self._transmit(envelope)
                case LinkUp(epoch):
                    _log.debug("welcomed by scheduler %s", epoch)
                    self._restate()
                    if self._link.epoch == epoch:
                        self._told_up = True
                        self._on_link(True)
                case LinkDown(cause):
                    if self._told_up:
                        _log.warning("the link to the scheduler is down: %s", cause)
                        self._told_up = False
                        self._on_link(False)
                case Stop(reason):
                    raise LinkRejectedError(f"the scheduler refused {self.name}: {reason}")

    def _restate(self) -> None:
        for message in self._inventory():
            if not self.send(message):
                return

    def _transmit(self, envelope: EnvelopeToScheduler) -> bool:
        if self._socket is not None and self._socket.send(encode(envelope)) is Sent.YES:
            return True
        # Told to the callbacks by the task of ``run``, never from inside a send.
        self._pending += self._link.handle(SendFailed(), monotonic_ns())
        self._alarm.ring()
        return False

    def _rearm(self) -> None:
        if self._pending:
            self._alarm.ring()
        else:
            self._alarm.set(self._link.next_deadline_ns(), monotonic_ns())
