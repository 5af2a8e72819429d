"""Envelopes to frames and back, with encoders and decoders made once.

A frame that does not decode comes from a wrong or newer peer; it is counted, logged once per
peer and minute, and dropped. It never ends a process.
"""

import logging
from collections import Counter
from typing import TypeVar

import msgspec

from gridcore.ids import PeerId
from gridcore.ipc.messages import EnvelopeFromScheduler, EnvelopeToScheduler, EventEnvelope
from gridcore.units import NS_PER_S

BAD_FRAME_LOG_EVERY_NS = 60 * NS_PER_S

_Envelope = TypeVar("_Envelope", EnvelopeToScheduler, EnvelopeFromScheduler, EventEnvelope)

_log = logging.getLogger("gridcore.ipc")
_encoder = msgspec.msgpack.Encoder()
_to_scheduler = msgspec.msgpack.Decoder(EnvelopeToScheduler)
_from_scheduler = msgspec.msgpack.Decoder(EnvelopeFromScheduler)
_event = msgspec.msgpack.Decoder(EventEnvelope)


class BadFrameError(ValueError):
    """The bytes are not an envelope of this direction and protocol."""


def encode(envelope: EnvelopeToScheduler | EnvelopeFromScheduler | EventEnvelope) -> bytes:
    return _encoder.encode(envelope)


def decode_to_scheduler(frame: bytes) -> EnvelopeToScheduler:
    return _decode(_to_scheduler, frame)


def decode_from_scheduler(frame: bytes) -> EnvelopeFromScheduler:
    return _decode(_from_scheduler, frame)


def decode_event(frame: bytes) -> EventEnvelope:
    return _decode(_event, frame)


def _decode(decoder: "msgspec.msgpack.Decoder[_Envelope]", frame: bytes) -> _Envelope:
    try:
        return decoder.decode(frame)
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError
        raise BadFrameError(str(error)) from error


class BadFrames:
    """Counts bad frames; logs the first of each peer in a minute."""

    def __init__(self) -> None:
        self.count_by_peer: Counter[PeerId] = Counter()
        self._logged_ns: dict[PeerId, int] = {}

    def add(self, peer: PeerId, error: BadFrameError, now_ns: int) -> None:
        self.count_by_peer[peer] += 1
        logged_ns = self._logged_ns.get(peer)
        if logged_ns is None or now_ns - logged_ns >= BAD_FRAME_LOG_EVERY_NS:
            self._logged_ns[peer] = now_ns
            _log.warning(
                "dropped a frame from %s that is no message of this version: %s (%d so far)",
                peer,
                error,
                self.count_by_peer[peer],
            )

    def total(self) -> int:
        return self.count_by_peer.total()
