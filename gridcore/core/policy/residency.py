"""May this model leave for that request? A pure answer with its reason and its end."""

from msgspec import Struct

from gridcore.config.schema import PolicyConfig, Workload

RANK: dict[Workload, int] = {workload: rank for rank, workload in enumerate(Workload)}
"""0 is the strongest class."""


class Holder(Struct, frozen=True):
    """What decides whether a resident model may be evicted."""

    pinned: bool
    hot: bool
    hot_until_ns: int | None
    interactive_busy: bool
    """Interactive work runs on it or waits for it."""
    loaded_for: Workload | None
    loaded_ns: int
    background_used_ns: int | None
    unserved_job_waits: bool
    """It has completed no step since its load, and a job waits for it."""
    bumped_too_often: bool
    """Its waiting job has been pushed back twice already."""


class Requester(Struct, frozen=True):
    """The request that needs the room."""

    workload: Workload
    arrived_ns: int
    batch_starved: bool


class Hold(Struct, frozen=True):
    """A model that stays: until when (None: until something other than time happens)."""

    kind: str
    until_ns: int | None


def hold(holder: Holder, requester: Requester, policy: PolicyConfig, now_ns: int) -> Hold | None:
    """Return why the holder stays, or None if it may be evicted for the requester."""
    if holder.pinned:
        return Hold("pinned", None)
    if requester.workload is Workload.INTERACTIVE:
        return _hold_from_interactive(holder, requester, policy, now_ns)
    if holder.hot or holder.interactive_busy:
        until_ns = holder.hot_until_ns
        return Hold("hot", until_ns if until_ns is not None and until_ns > now_ns else None)
    if holder.unserved_job_waits:
        return Hold("not served yet", None)
    return _hold_from_lower(holder, requester, policy, now_ns)


def _hold_from_interactive(
    holder: Holder, requester: Requester, policy: PolicyConfig, now_ns: int
) -> Hold | None:
    if holder.unserved_job_waits and _is_served_meanwhile(holder, policy):
        return Hold("not served yet", None)
    if holder.interactive_busy:
        # The resident model keeps serving, but not past the turn of the one that waits.
        until_ns = requester.arrived_ns + policy.interactive_turn_ns
        if now_ns < until_ns:
            return Hold("in interactive use", until_ns)
    return None


def _is_served_meanwhile(holder: Holder, policy: PolicyConfig) -> bool:
    """Will what waits for the holder run while the interactive requester waits?"""
    if holder.loaded_for is Workload.INTERACTIVE and holder.interactive_busy:
        return True
    grants = policy.background_max_starvation_ns > 0
    return holder.bumped_too_often and grants


def _hold_from_lower(
    holder: Holder, requester: Requester, policy: PolicyConfig, now_ns: int
) -> Hold | None:
    """min_residency: models of equal rank take turns; batch leaves background's models alone."""
    if not policy.min_residency_ns:
        return None
    if requester.workload is Workload.BATCH:
        used_ns = holder.background_used_ns
        if used_ns is not None and not requester.batch_starved:
            until_ns = used_ns + policy.min_residency_ns
            if now_ns < until_ns:
                return Hold("in use by background", until_ns)
    if holder.loaded_for is requester.workload:
        until_ns = holder.loaded_ns + policy.min_residency_ns
        if now_ns < until_ns:
            return Hold(f"in use by {requester.workload}", until_ns)
    return None
