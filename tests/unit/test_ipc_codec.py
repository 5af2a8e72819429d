"""Frames, names and addresses of the bus."""

import logging
from pathlib import Path

import pytest

from gridcore.config.schema import Workload
from gridcore.core.events import JobKind, JobSubmitted
from gridcore.errors import GridcoreError
from gridcore.ids import Epoch, JobId, PeerId
from gridcore.ipc.codec import (
    BAD_FRAME_LOG_EVERY_NS,
    BadFrameError,
    BadFrames,
    decode_from_scheduler,
    decode_to_scheduler,
    encode,
)
from gridcore.ipc.endpoints import identity_of, ipc_address, peer_of, remove_stale_sockets
from gridcore.ipc.messages import EnvelopeToScheduler, SubmitJob
from gridcore.paths import SOCKET_PATH_BYTES_MAX, RuntimePaths

JOB = JobSubmitted(
    job_id=JobId("j"),
    gateway=PeerId("gateway-0"),
    target="m",
    workload=Workload.INTERACTIVE,
    kind=JobKind.CHAT,
)


def test_an_envelope_survives_the_wire() -> None:
    envelope = EnvelopeToScheduler(epoch=Epoch("e"), seq=3, body=SubmitJob(job=JOB))
    assert decode_to_scheduler(encode(envelope)) == envelope


def test_a_frame_of_the_other_direction_is_bad() -> None:
    frame = encode(EnvelopeToScheduler(epoch=Epoch("e"), seq=3, body=SubmitJob(job=JOB)))
    with pytest.raises(BadFrameError, match="submit"):
        decode_from_scheduler(frame)


def test_bad_frames_are_logged_once_a_minute_and_peer(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadFrames()
    one, other = PeerId("gateway-0"), PeerId("gateway-1")
    with caplog.at_level(logging.WARNING, logger="gridcore.ipc"):
        for now_ns in range(100):
            bad.add(one, BadFrameError("nonsense"), now_ns)
        bad.add(other, BadFrameError("nonsense"), 100)
        bad.add(one, BadFrameError("nonsense"), BAD_FRAME_LOG_EVERY_NS)
    assert bad.total() == 102
    assert bad.count_by_peer[one] == 101
    assert [record.args[2] for record in caplog.records if record.args] == [1, 1, 101]


@pytest.mark.parametrize("name", ["gateway-0", "gpu-monitor", "a" * 32])
def test_a_name_is_its_routing_id(name: str) -> None:
    assert peer_of(identity_of(PeerId(name))) == name


@pytest.mark.parametrize("name", ["", "a" * 33, "Gateway", "0-gateway", "gate way", "gâteway"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(GridcoreError, match="link name"):
        identity_of(PeerId(name))


def test_a_routing_id_made_by_zeromq_is_nobody() -> None:
    assert peer_of(b"\x00\x80\x00\x41\xa7") is None


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    longest = Path("/tmp") / ("x" * (SOCKET_PATH_BYTES_MAX - len("/tmp/")))
    assert ipc_address(longest) == f"ipc://{longest}"
    with pytest.raises(GridcoreError, match=f"{SOCKET_PATH_BYTES_MAX + 1} bytes"):
        ipc_address(Path(f"{longest}x"))


def test_only_sockets_that_a_daemon_binds_are_removed(tmp_path: Path) -> None:
    runtime = RuntimePaths(tmp_path)
    runtime.events.write_text("somebody's file")
    assert remove_stale_sockets(runtime) == []
    assert runtime.events.exists()
