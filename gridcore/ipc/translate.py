"""The one table between the wire and the brain: messages in, events; commands, messages out.

Wire types and core types differ on purpose: the protocol can stay when the brain changes. Pure;
what a link says about a peer (silent, dead) is translated here too.
"""

from typing import assert_never

from gridcore.core import commands, events
from gridcore.core.commands import AnyCommand, PublishNote
from gridcore.core.events import AnyEvent
from gridcore.ids import PeerId
from gridcore.ipc import messages
from gridcore.ipc.link import ChangeKind, PeerChange
from gridcore.ipc.messages import FromScheduler, ToScheduler

GATEWAY, SUPERVISOR, MONITOR = "gateway", "supervisor", "gpu-monitor"


def event_of(peer: PeerId, message: ToScheduler) -> AnyEvent | None:  # noqa: C901, PLR0912 - a table
    """The event a message is to the brain; None if it is for the shell (beats, state)."""
    match message:
        case messages.SubmitJob():
            return message.job
        case messages.CancelJob():
            return events.JobCancelled(job_id=message.job_id, cause=message.cause)
        case messages.StepAnswering():
            return events.AnswerBegun(lease_id=message.lease_id)
        case messages.StepEnded():
            return events.StepFinished(
                lease_id=message.lease_id,
                outcome=message.outcome,
                took_ns=message.took_ns,
                last=message.last,
                slot_idle=message.slot_idle,
                detail=message.detail,
            )
        case messages.SlotsReading():
            return events.SlotsSeen(load_id=message.load_id, idle_slots=message.idle_slots)
        case messages.AdminRequest():
            return events.AdminAsked(
                request_id=message.request_id, peer=peer, verb=message.verb, target=message.target
            )
        case messages.RuntimeReady():
            return events.RuntimeLoaded(
                load_id=message.load_id,
                pid=message.pid,
                address=message.address,
                slots=message.slots,
                took_ns=message.took_ns,
                footprint_bytes=message.footprint_bytes,
            )
        case messages.LoadFailed():
            return events.LoadFailed(
                load_id=message.load_id,
                cause=message.cause,
                detail=message.detail,
                card_free_bytes=message.card_free_bytes,
            )
        case messages.RuntimeExited():
            return events.RuntimeExited(
                load_id=message.load_id, cause=message.cause, detail=message.detail
            )
        case messages.FootprintMeasured():
            return events.FootprintMeasured(
                load_id=message.load_id, footprint_bytes=message.footprint_bytes
            )
        case messages.SupervisorInventory():
            return events.SupervisorRestated(runtimes=message.runtimes, profiles=message.profiles)
        case messages.CardSample():
            return events.CardSampled(
                card_id=message.card_id,
                total_bytes=message.total_bytes,
                used_bytes=message.used_bytes,
                used_by_pid=message.used_by_pid,
                utilization_percent=message.utilization_percent,
                pressure=message.pressure,
            )
        case messages.ServiceExited():
            return _gone(message.peer)
        case messages.BeginDrain():
            return events.DrainBegun()
        case (
            messages.Hello()
            | messages.Beat()
            | messages.Goodbye()
            | messages.GatewayInventory()
            | messages.StateRequest()
            | messages.ServicesStatus()
        ):
            return None
        case _:
            assert_never(message)


def event_of_change(change: PeerChange) -> AnyEvent | None:
    """What a link's word about a peer is to the brain. Silence is never proof of death."""
    role = change.role
    match change.kind:
        case ChangeKind.JOINED if change.fresh:
            return _gone(change.peer)  # an earlier incarnation of this name is dead
        case ChangeKind.JOINED:
            return None
        case ChangeKind.LEFT:
            return _gone(change.peer)
        case ChangeKind.BACK if role == GATEWAY:
            return events.GatewaySuspected(gateway=change.peer, suspect=False)
        case ChangeKind.BACK:
            return None
        case ChangeKind.SUSPECT | ChangeKind.LOST:
            if role == GATEWAY:
                return events.GatewaySuspected(gateway=change.peer, suspect=True)
            return _gone(change.peer)


def _gone(peer: PeerId) -> AnyEvent | None:
    if peer.startswith(GATEWAY):
        return events.GatewayGone(gateway=peer)
    if peer.startswith(SUPERVISOR):
        return events.SupervisorGone()
    if peer.startswith(MONITOR):
        return events.MonitorGone()
    return None


def message_of(command: AnyCommand) -> tuple[PeerId, FromScheduler] | None:
    """Where a command goes and what it is on the wire; None for a note, which is published."""
    match command:
        case commands.DispatchStep():
            return command.gateway, messages.GrantStep(
                lease_id=command.lease_id,
                job_id=command.job_id,
                load_id=command.load_id,
                model_id=command.model_id,
                address=command.address,
                slots=command.slots,
                first=command.first,
                count=command.count,
                waited_ns=command.waited_ns,
                workload=command.workload,
                reason=command.reason,
            )
        case commands.RefuseJob():
            return command.gateway, messages.RefuseJob(
                job_id=command.job_id,
                status=command.status,
                error_type=command.error_type,
                code=command.code,
                message=command.message,
                param=command.param,
                retry_after_ns=command.retry_after_ns,
            )
        case commands.CancelStep():
            return command.gateway, messages.CancelStep(
                lease_id=command.lease_id, job_id=command.job_id, reason=command.reason
            )
        case commands.ReadSlots():
            return command.gateway, messages.ReadSlots(
                load_id=command.load_id, address=command.address
            )
        case commands.AnswerAdmin():
            return command.peer, messages.AdminReply(
                request_id=command.request_id, status=command.status, message=command.message
            )
        case commands.LoadModel():
            return PeerId(SUPERVISOR), messages.LoadModel(
                load_id=command.load_id,
                model_id=command.model_id,
                reserved_bytes=command.reserved_bytes,
            )
        case commands.UnloadModel():
            return PeerId(SUPERVISOR), messages.UnloadModel(
                load_id=command.load_id, reason=command.reason
            )
        case commands.SampleCard():
            return PeerId(MONITOR), messages.SampleRequest(card_id=command.card_id)
        case PublishNote():
            return None
        case _:
            assert_never(command)
