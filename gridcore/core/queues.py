"""Waiting jobs: by class, by what they wait for, by client.

Within a class clients share: next is the client with the least slot time in the last 60 s,
ties by arrival; within a client first come first served. All operations are O(log n) in the
number of waiting jobs.
"""

import heapq
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from gridcore.config.schema import Fairness
from gridcore.core.job import Job, Place
from gridcore.core.keys import QueueKey
from gridcore.ids import JobId, PeerId
from gridcore.units import NS_PER_S

FAIRNESS_WINDOW_NS = 60 * NS_PER_S
STALE_ENTRIES_MAX = 64
"""Stale ranks a queue may carry before it is sorted anew; twice the clients are tolerated."""


class FairShare:
    """Slot time of each client of a class over the last 60 s.

    A running step counts by its expected length, so that a client that has just been served
    does not look idle until its step ends.
    """

    def __init__(self, fairness: Fairness) -> None:
        self._enabled = fairness is Fairness.CLIENT
        self._used_ns: dict[str, int] = {}
        self._expiries: list[tuple[int, int, str, int]] = []
        self._n_entries = 0

    def used_ns(self, client: str) -> int:
        return self._used_ns.get(client, 0)

    def begin(self, client: str, expected_ns: int) -> None:
        self._add(client, expected_ns)

    def end(self, client: str, expected_ns: int, slot_ns: int, now_ns: int) -> None:
        """Replace the expected slot time of a step by what it took."""
        self._add(client, slot_ns - expected_ns)
        if self._enabled and slot_ns:
            self._n_entries += 1
            entry = (now_ns + FAIRNESS_WINDOW_NS, self._n_entries, client, slot_ns)
            heapq.heappush(self._expiries, entry)

    def expire(self, now_ns: int) -> list[str]:
        """Forget what is older than the window; return the clients it concerned."""
        changed: dict[str, None] = {}
        while self._expiries and self._expiries[0][0] <= now_ns:
            _, _, client, slot_ns = heapq.heappop(self._expiries)
            self._add(client, -slot_ns)
            changed[client] = None
        return list(changed)

    def _add(self, client: str, slot_ns: int) -> None:
        if not self._enabled:
            return
        used_ns = self._used_ns.get(client, 0) + slot_ns
        if used_ns:
            self._used_ns[client] = used_ns
        else:
            self._used_ns.pop(client, None)


class WaitQueue:
    """All and only the queued jobs of one class and one key."""

    def __init__(
        self, key: QueueKey, share: FairShare, suspects: AbstractSet[PeerId], now_ns: int
    ) -> None:
        self.key = key
        self.starved_since_ns = now_ns
        """Since when nothing of this queue made progress."""
        self.granting = False
        """Its last step was a grant, and it has not been empty since."""
        self._share = share
        self._suspects = suspects
        self._jobs: dict[JobId, Job] = {}
        self._held: dict[JobId, Job] = {}
        """Jobs of suspect gateways: they keep their place and are nobody's head."""
        self._by_client: dict[str, list[tuple[Place, JobId]]] = {}
        self._clients: list[tuple[int, Place, str]] = []
        self._rank_by_client: dict[str, tuple[int, Place, str]] = {}
        """The one entry of ``_clients`` that counts; others of that client are stale."""
        self._arrivals: list[tuple[Place, JobId]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def add(self, job: Job, now_ns: int) -> None:
        """Add a job, or put it back at its old place."""
        if job.job_id in self._jobs:
            return
        if not self._jobs:
            self.starved_since_ns = now_ns
        self._jobs[job.job_id] = job
        heapq.heappush(self._arrivals, (job.place, job.job_id))
        self._line_up(job)

    def _line_up(self, job: Job) -> None:
        heapq.heappush(self._by_client.setdefault(job.client, []), (job.place, job.job_id))
        self.touch(job.client)

    def release(self, gateway: PeerId) -> None:
        """A gateway is not suspect any more: its jobs may be heads again."""
        for job in [held for held in self._held.values() if held.gateway == gateway]:
            del self._held[job.job_id]
            self._line_up(job)

    def remove(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id, None)
        self._held.pop(job_id, None)
        if job is not None and not self._jobs:
            self.granting = False
            self._by_client.clear()
            self._clients.clear()
            self._rank_by_client.clear()
            self._arrivals.clear()

    def touch(self, client: str) -> None:
        """Rank a client anew after its use fell or its oldest job changed."""
        job = self._client_head(client)
        if job is None:
            return
        rank = (self._share.used_ns(client), job.place, client)
        if self._rank_by_client.get(client) == rank:
            return
        self._rank_by_client[client] = rank
        heapq.heappush(self._clients, rank)
        if len(self._clients) > 2 * len(self._rank_by_client) + STALE_ENTRIES_MAX:
            self._clients = sorted(self._rank_by_client.values())

    def oldest(self) -> Job | None:
        """The job that arrived first."""
        while self._arrivals:
            job = self._jobs.get(self._arrivals[0][1])
            if job is not None:
                return job
            heapq.heappop(self._arrivals)
        return None

    def head(self) -> Job | None:
        """The job whose turn it is; None if all are of suspect gateways."""
        while self._clients:
            rank = self._clients[0]
            client = rank[2]
            if self._rank_by_client.get(client) != rank:
                heapq.heappop(self._clients)
                continue
            job = self._client_head(client)
            if job is None:
                del self._rank_by_client[client]
                continue
            current = (self._share.used_ns(client), job.place, client)
            if current == rank:
                return job
            self._rank_by_client[client] = current
            heapq.heapreplace(self._clients, current)
        return None

    def rank(self, job: Job) -> tuple[int, Place]:
        """What decides between the heads of two queues for the same model."""
        return self._share.used_ns(job.client), job.place

    def _client_head(self, client: str) -> Job | None:
        waiting = self._by_client.get(client)
        while waiting:
            job = self._jobs.get(waiting[0][1])
            if job is not None and job.gateway not in self._suspects:
                return job
            heapq.heappop(waiting)
            if job is not None:
                self._held[job.job_id] = job
        self._by_client.pop(client, None)
        return None


class ClassQueue:
    """All waiting jobs of one class."""

    def __init__(self, fairness: Fairness, suspects: AbstractSet[PeerId]) -> None:
        self.share = FairShare(fairness)
        self._suspects = suspects
        self.n_jobs = 0
        self._queues: dict[QueueKey, WaitQueue] = {}

    def queues(self) -> list[WaitQueue]:
        """The queues that are not empty, in the order of their first use."""
        return [queue for queue in self._queues.values() if len(queue)]

    def find(self, key: QueueKey) -> WaitQueue | None:
        return self._queues.get(key)

    def add(self, key: QueueKey, job: Job, now_ns: int) -> WaitQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = WaitQueue(key, self.share, self._suspects, now_ns)
        if job.job_id not in queue:
            self.n_jobs += 1
            queue.add(job, now_ns)
        return queue

    def remove(self, key: QueueKey, job_id: JobId) -> None:
        queue = self._queues.get(key)
        if queue is not None and job_id in queue:
            self.n_jobs -= 1
            queue.remove(job_id)

    def release(self, gateway: PeerId) -> None:
        for queue in self._queues.values():
            queue.release(gateway)

    def begin(self, client: str, expected_ns: int) -> None:
        self.share.begin(client, expected_ns)

    def end(self, client: str, expected_ns: int, slot_ns: int, now_ns: int) -> None:
        self.share.end(client, expected_ns, slot_ns, now_ns)
        self._touch(client)

    def expire(self, now_ns: int) -> None:
        for client in self.share.expire(now_ns):
            self._touch(client)

    def jobs(self) -> Iterator[Job]:
        for queue in self._queues.values():
            yield from queue

    def _touch(self, client: str) -> None:
        for queue in self._queues.values():
            queue.touch(client)
