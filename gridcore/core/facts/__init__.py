"""Apply events: facts only, no choices. What they mean for who runs is ``plan()``'s business.

An event about an attempt that is unknown or over is counted and dropped.
"""

from typing import assert_never

from gridcore.core.events import (
    AdminAsked,
    AnswerBegun,
    AnyEvent,
    CardSampled,
    DrainBegun,
    FootprintMeasured,
    GatewayGone,
    GatewayRestated,
    GatewaySuspected,
    JobCancelled,
    JobSubmitted,
    LoadFailed,
    MonitorGone,
    RuntimeExited,
    RuntimeLoaded,
    SlotsSeen,
    StepFinished,
    SupervisorGone,
    SupervisorRestated,
)
from gridcore.core.facts import cards, gateways, jobs, people, runtimes
from gridcore.core.state import State


def apply(state: State, event: AnyEvent) -> None:  # noqa: C901, PLR0912 - one flat table of cases
    match event:
        case JobSubmitted():
            jobs.job_submitted(state, event)
        case JobCancelled():
            jobs.job_cancelled(state, event)
        case AnswerBegun():
            jobs.answer_begun(state, event)
        case StepFinished():
            jobs.step_finished(state, event)
        case SlotsSeen():
            jobs.slots_seen(state, event)
        case GatewayRestated():
            gateways.gateway_restated(state, event)
        case GatewayGone():
            gateways.gateway_gone(state, event.gateway)
        case GatewaySuspected():
            gateways.gateway_suspected(state, event)
        case RuntimeLoaded():
            runtimes.runtime_loaded(state, event)
        case LoadFailed():
            runtimes.load_failed(state, event)
        case RuntimeExited():
            runtimes.runtime_exited(state, event)
        case FootprintMeasured():
            runtimes.footprint_measured(state, event)
        case SupervisorRestated():
            runtimes.supervisor_restated(state, event)
        case SupervisorGone():
            state.supervisor_here = False
            state.mark_all()
        case CardSampled():
            cards.card_sampled(state, event)
        case MonitorGone():
            state.monitor_here = False
            state.mark_all()
        case AdminAsked():
            people.admin_asked(state, event)
        case DrainBegun():
            people.drain_begun(state)
        case _:
            assert_never(event)
