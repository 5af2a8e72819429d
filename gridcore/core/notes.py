"""A note: one line of the explain log, as published on the event socket.

The verbs are fixed. ``data`` holds values, not sentences; ``text`` is the rendered rest of the
line for people (`17:45:32.280 evict  gemma4-12b  make room for qwen3-14b, cost 6`).
"""

from enum import StrEnum

from msgspec import Struct

from gridcore.ids import CardId, JobId, ModelId


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    DISPATCH = "dispatch"
    COMPLETE = "complete"
    CANCEL = "cancel"
    FAIL = "fail"
    REQUEUE = "requeue"
    REFUSE = "refuse"
    TIMEOUT = "timeout"
    MODE = "mode"
    VARIANT = "variant"
    LOAD = "load"
    LOADED = "loaded"
    EVICT = "evict"
    UNLOAD = "unload"
    UNLOADED = "unloaded"
    DRAIN = "drain"
    DEFER = "defer"
    THRASH = "thrash"
    BREAKER = "breaker"
    MEMORY = "memory"
    PEER = "peer"


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    verb: Verb
    text: str
    job_id: JobId | None = None
    model_id: ModelId | None = None
    card_id: CardId | None = None
    workload: str | None = None
    data: dict[str, str | int | float | bool | None] = {}
