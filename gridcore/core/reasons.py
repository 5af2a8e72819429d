"""Every reason the brain can give, its sentence, and what would change it.

A ``Why`` is a value: a reason and the facts it needs. It is rendered where it is read. A wait
always names what unblocks it; a reason that nothing unblocks is a refusal.
"""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    # Why a step was dispatched.
    FREE_SLOT = "free_slot"
    GRANT = "grant"
    # Why a job waits.
    SLOTS_BUSY = "slots_busy"
    SLOT_COOLING = "slot_cooling"
    INTERACTIVE_ACTIVE = "interactive_active"
    SHARE_USED = "share_used"
    LAST_SLOT_KEPT = "last_slot_kept"
    BEHIND_BACKGROUND = "behind_background"
    LOADING = "loading"
    LOAD_SLOT_TAKEN = "load_slot_taken"
    INTERACTIVE_LOADS_FIRST = "interactive_loads_first"
    MAKING_ROOM = "making_room"
    RELEASING = "releasing"
    UNLOADING = "unloading"
    DRAINING = "draining"
    HELD_BY_MODELS = "held_by_models"
    INTERACTIVE_TURN = "interactive_turn"
    FOREIGN_MEMORY = "foreign_memory"
    MEMORY_PRESSURE = "memory_pressure"
    OVER_BUDGET = "over_budget"
    CARD_UNKNOWN = "card_unknown"
    SUPERVISOR_AWAY = "supervisor_away"
    RUNTIME_SUSPECT = "runtime_suspect"
    GATEWAY_SUSPECT = "gateway_suspect"
    # Why a model leaves, or a load is taken back.
    MAKE_ROOM = "make_room"
    IDLE = "idle"
    ADMIN = "admin"
    FOREIGN_GREW = "foreign_grew"
    PRESSURE_CRITICAL = "pressure_critical"
    LOAD_PREEMPTED = "load_preempted"
    SHUTDOWN = "shutdown"
    NOT_CONFIGURED = "not_configured"
    # Why a model is loaded.
    WANTED = "wanted"
    PRELOAD = "preload"
    # Why a step is taken back.
    STANDS_IN_THE_WAY = "stands_in_the_way"
    # Why a variant was chosen.
    RESIDENT = "resident"
    FITS_FREE = "fits_free"
    BEST_OBTAINABLE = "best_obtainable"
    LEAST_EVICTION = "least_eviction"
    # Why a job is refused.
    QUEUE_TIMEOUT = "queue_timeout"
    QUEUE_FULL = "queue_full"
    NEVER_FITS = "never_fits"
    LOAD_FAILED = "load_failed"
    BREAKER_OPEN = "breaker_open"
    RUNTIME_LOST = "runtime_lost"
    UNKNOWN_MODEL = "unknown_model"
    TOO_WIDE = "too_wide"
    NO_VARIANT = "no_variant"
    SHUTTING_DOWN = "shutting_down"


class Unblock(StrEnum):
    """What has to happen before a wait can end."""

    SLOT_FREED = "a slot is free"
    QUIET = "the quiet period has passed"
    SHARE_PAID = "the share allows the next step"
    BACKGROUND_DONE = "background has nothing to run, or the batch bound is reached"
    LOADED = "the load ends"
    LOAD_SLOT_FREED = "the card's load in progress ends"
    ROOM_MADE = "the victims are gone"
    MEMORY_BACK = "the card shows the memory as free"
    MODEL_COOLED = "a model is not hot any more, or is unloaded"
    TURN_PASSED = "the resident model's turn has passed"
    FOREIGN_LEFT = "another program gives memory back"
    PRESSURE_EASED = "the memory pressure eases"
    SAMPLE_SEEN = "the card is sampled"
    SUPERVISOR_BACK = "the supervisor is back"
    RUNTIME_SEEN = "the runtime is seen alive, or gone"
    GATEWAY_BACK = "its gateway answers again"


UNBLOCKED_BY: dict[Reason, tuple[Unblock, ...]] = {
    Reason.SLOTS_BUSY: (Unblock.SLOT_FREED,),
    Reason.SLOT_COOLING: (Unblock.SLOT_FREED,),
    Reason.INTERACTIVE_ACTIVE: (Unblock.QUIET, Unblock.SHARE_PAID),
    Reason.SHARE_USED: (Unblock.SHARE_PAID, Unblock.QUIET),
    Reason.LAST_SLOT_KEPT: (Unblock.SLOT_FREED, Unblock.SHARE_PAID, Unblock.MODEL_COOLED),
    Reason.BEHIND_BACKGROUND: (Unblock.BACKGROUND_DONE,),
    Reason.LOADING: (Unblock.LOADED,),
    Reason.LOAD_SLOT_TAKEN: (Unblock.LOAD_SLOT_FREED,),
    Reason.INTERACTIVE_LOADS_FIRST: (Unblock.LOAD_SLOT_FREED,),
    Reason.MAKING_ROOM: (Unblock.ROOM_MADE,),
    Reason.RELEASING: (Unblock.MEMORY_BACK,),
    Reason.UNLOADING: (Unblock.ROOM_MADE,),
    Reason.DRAINING: (Unblock.ROOM_MADE,),
    Reason.HELD_BY_MODELS: (Unblock.MODEL_COOLED, Unblock.TURN_PASSED),
    Reason.INTERACTIVE_TURN: (Unblock.TURN_PASSED, Unblock.MODEL_COOLED),
    Reason.FOREIGN_MEMORY: (Unblock.FOREIGN_LEFT,),
    Reason.MEMORY_PRESSURE: (Unblock.PRESSURE_EASED,),
    Reason.OVER_BUDGET: (Unblock.MODEL_COOLED, Unblock.FOREIGN_LEFT),
    Reason.CARD_UNKNOWN: (Unblock.SAMPLE_SEEN,),
    Reason.SUPERVISOR_AWAY: (Unblock.SUPERVISOR_BACK,),
    Reason.RUNTIME_SUSPECT: (Unblock.RUNTIME_SEEN,),
    Reason.GATEWAY_SUSPECT: (Unblock.GATEWAY_BACK,),
}
"""All and only the reasons a job may wait for."""

_SENTENCES: dict[Reason, str] = {
    Reason.FREE_SLOT: "a slot is free",
    Reason.GRANT: "its share of the time alongside interactive work",
    Reason.SLOTS_BUSY: "all {slots} slots of {model} are busy",
    Reason.SLOT_COOLING: "a slot of {model} is still ending work its client left",
    Reason.INTERACTIVE_ACTIVE: "interactive work is active; next step in {next_in}",
    Reason.SHARE_USED: "held by background_share; next step in {next_in}",
    Reason.LAST_SLOT_KEPT: "the last free slot of {model} is kept for interactive",
    Reason.BEHIND_BACKGROUND: "background work goes first",
    Reason.LOADING: "{model} is loading",
    Reason.LOAD_SLOT_TAKEN: "{other} is loading; one load at a time",
    Reason.INTERACTIVE_LOADS_FIRST: "an interactive request is waiting for {other}",
    Reason.MAKING_ROOM: "making room for {model}: {victims} must go first",
    Reason.RELEASING: "waiting until the card shows the memory of {other} as free",
    Reason.UNLOADING: "{model} is being unloaded",
    Reason.DRAINING: "{model} finishes what runs and leaves",
    Reason.HELD_BY_MODELS: "{model} needs {need}, {free} can be had; kept: {kept}",
    Reason.INTERACTIVE_TURN: "{model} needs {need}; {kept} serves interactive work until its turn "
    "ends",
    Reason.FOREIGN_MEMORY: "{model} needs {need}; other programs hold {foreign} of the card",
    Reason.MEMORY_PRESSURE: "memory pressure is {pressure}: only loaded models run this class",
    Reason.OVER_BUDGET: "the card is {over} over its budget; nothing is loaded until it is not",
    Reason.CARD_UNKNOWN: "the card {card} has not been sampled yet",
    Reason.SUPERVISOR_AWAY: "the supervisor is away; loads wait",
    Reason.RUNTIME_SUSPECT: "{model} does not answer; waiting for word of it",
    Reason.GATEWAY_SUSPECT: "its gateway does not answer",
    Reason.MAKE_ROOM: "make room for {model}, cost {cost}",
    Reason.IDLE: "idle for {idle} (ttl)",
    Reason.ADMIN: "asked by admin",
    Reason.FOREIGN_GREW: "other programs took {foreign} of the card",
    Reason.PRESSURE_CRITICAL: "memory pressure is critical",
    Reason.LOAD_PREEMPTED: "an interactive request needs the room or the load slot for {model}",
    Reason.SHUTDOWN: "shutting down",
    Reason.NOT_CONFIGURED: "not part of this configuration",
    Reason.WANTED: "wanted by {workload}",
    Reason.PRELOAD: "pinned",
    Reason.STANDS_IN_THE_WAY: "its model must leave for {model}; nobody has seen a byte of it",
    Reason.RESIDENT: "resident",
    Reason.FITS_FREE: "fits in free memory",
    Reason.BEST_OBTAINABLE: "the best variant that can be had",
    Reason.LEAST_EVICTION: "no variant runs without evicting; this one costs least",
    Reason.QUEUE_TIMEOUT: "waited {waited}, longer than max_wait {max_wait}: {because}",
    Reason.QUEUE_FULL: "{queued} {workload} requests are waiting, queue_limit is {limit}",
    Reason.NEVER_FITS: "{model} needs {need}, {ceiling} can be freed at most{because}; lower ctx "
    "or parallel{advice}",
    Reason.LOAD_FAILED: "{model} failed to load: {detail}",
    Reason.BREAKER_OPEN: "{model} failed {failures} times ({detail}); next try in {next_in}, or "
    "POST /admin/models/{model}/enable",
    Reason.RUNTIME_LOST: "the runtime of {model} died {times} times under this request: {detail}",
    Reason.UNKNOWN_MODEL: "no model or family is named {model}",
    Reason.TOO_WIDE: "n={width} needs {width} slots at once, {model} has {slots}; lower n or raise "
    "parallel",
    Reason.NO_VARIANT: "no variant of {model} takes {needs} at this quality",
    Reason.SHUTTING_DOWN: "the daemon is shutting down",
}

Fact = str | int | float


class Why(Struct, frozen=True):
    """A reason with its facts."""

    reason: Reason
    facts: dict[str, Fact] = {}

    def __str__(self) -> str:
        return _SENTENCES[self.reason].format_map(self.facts)
