"""The model of a simulated runtime: slots, speeds, canned text, deterministic vectors.

It knows no HTTP. Work is awaited; cancelling the task that awaits stops it before the next token
and frees the slot.
"""

import asyncio
import hashlib
import re
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

YIELD_EVERY_TOKENS = 32
"""A model faster than the event loop must still let it read: disconnects are seen there."""
VOCABULARY = 32_000
_PIECE = re.compile(r"\s*\S{1,8}|\s+$")


@dataclass(frozen=True, kw_only=True)
class Spec:
    model_id: str
    footprint_bytes: int = 0
    slots: int = 1
    context: int = 4096
    batch: int = 512
    load_s: float = 0.0
    tokens_per_second: float = 40.0
    prompt_tokens_per_second: float = 2000.0
    embedding_ms: float = 4.0
    dimensions: int = 16
    reply: str = "Canned."
    embeddings: bool = False
    rerank: bool = False
    mmproj: bool = False

    @property
    def slot_context(self) -> int:
        return self.context // self.slots


class Slots:
    """Each busy slot belongs to one task; waiters get them in the order they came."""

    def __init__(self, count: int) -> None:
        self.busy = [False] * count
        self._waiters: deque[tuple[int | None, asyncio.Future[int]]] = deque()

    @property
    def n_waiting(self) -> int:
        return sum(not waiter.done() for _, waiter in self._waiters)

    @asynccontextmanager
    async def one(self, wanted: int | None = None) -> AsyncIterator[int]:
        """Hold a slot; a wanted one is waited for even when another is free."""
        if wanted is not None:
            wanted %= len(self.busy)  # as llama-server wraps it
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, waiter))
        self._serve()
        try:
            slot = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._free(waiter.result())
            waiter.cancel()
            raise
        try:
            yield slot
        finally:
            self._free(slot)

    def _free(self, slot: int) -> None:
        self.busy[slot] = False
        self._serve()

    def _serve(self) -> None:
        unserved: deque[tuple[int | None, asyncio.Future[int]]] = deque()
        for wanted, waiter in self._waiters:
            if waiter.done():
                continue
            slot = self._free_slot(wanted)
            if slot is None:
                unserved.append((wanted, waiter))
                continue
            self.busy[slot] = True
            waiter.set_result(slot)
        self._waiters = unserved

    def _free_slot(self, wanted: int | None) -> int | None:
        if wanted is not None:
            return None if self.busy[wanted] else wanted
        return next((slot for slot, busy in enumerate(self.busy) if not busy), None)


class Pace:
    """Keeps to a speed over many small waits: each is until an instant, so errors do not add."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._began = self._loop.time()
        self._since_yield = 0

    @property
    def elapsed_ms(self) -> float:
        return (self._loop.time() - self._began) * 1000

    async def spend(self, seconds: float) -> None:
        self._due += seconds
        late = self._due - self._loop.time()
        self._since_yield += 1
        if late > 0 or self._since_yield >= YIELD_EVERY_TOKENS:
            self._since_yield = 0
            await asyncio.sleep(max(0.0, late))


class SimulatedModel:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.slots = Slots(spec.slots)
        self.prompt_tokens_total = 0
        self.predicted_tokens_total = 0

    async def read_prompt(self, n_tokens: int) -> AsyncIterator[tuple[int, float]]:
        """Process a prompt; yield after each batch the tokens done and the milliseconds taken."""
        pace = Pace()
        done = 0
        while done < n_tokens:
            batch = min(self.spec.batch, n_tokens - done)
            await pace.spend(batch / self.spec.prompt_tokens_per_second)
            done += batch
            yield done, pace.elapsed_ms
        self.prompt_tokens_total += n_tokens

    async def tokens(self, limit: int | None, *, endless: bool = False) -> AsyncIterator[str]:
        """Yield the reply token by token, at most ``limit`` of them."""
        pieces = pieces_of(self.spec.reply) or ["."]
        if limit is None or (not endless and limit > len(pieces)):
            limit = len(pieces)
        pace = Pace()
        for n in range(limit):
            await pace.spend(1 / self.spec.tokens_per_second)
            self.predicted_tokens_total += 1
            piece = pieces[n % len(pieces)]
            yield piece if n < len(pieces) or piece[0].isspace() else f" {piece}"

    async def embed(self, inputs: list[str]) -> list[list[float]]:
        """Embed each input; as many at once as there are slots."""
        pending = deque(range(len(inputs)))
        vectors: list[list[float]] = [[] for _ in inputs]

        async def work() -> None:
            pace = Pace()
            while pending:
                n = pending.popleft()
                await pace.spend(self.spec.embedding_ms / 1000)
                vectors[n] = vector_of(inputs[n], self.spec.dimensions)

        async def worker() -> None:
            async with self.slots.one():
                await work()

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(len(inputs), self.spec.slots)):
                workers.create_task(worker())
        return vectors


def pieces_of(text: str) -> list[str]:
    """Cut text into what this model calls tokens; joined they are the text."""
    return _PIECE.findall(text)


def token_of(piece: str) -> int:
    return zlib.crc32(piece.encode()) % VOCABULARY


def vector_of(text: str, dimensions: int) -> list[float]:
    """Return a unit vector that depends on nothing but the text."""
    raw = hashlib.shake_128(text.encode()).digest(4 * dimensions)
    values = [word / 2**31 - 1 for word in struct.unpack(f"<{dimensions}I", raw)]
    norm = sum(value * value for value in values) ** 0.5 or 1.0
    return [value / norm for value in values]
