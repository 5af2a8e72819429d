"""Names of things that cross a process boundary, and the makers of random ones.

Every attempt has an id of its own (job, lease, load), so that a late answer to an old attempt
is recognised. Lease and load ids are made by the brain from its epoch and a counter; they are
not random, so that a replay gives the same ones.
"""

import secrets
from collections.abc import Iterable
from typing import NewType
from zlib import crc32

JobId = NewType("JobId", str)
LeaseId = NewType("LeaseId", str)
LoadId = NewType("LoadId", str)
ModelId = NewType("ModelId", str)
CardId = NewType("CardId", str)
PeerId = NewType("PeerId", str)
"""A link name with its instance, such as ``gateway-0``."""
Epoch = NewType("Epoch", str)
"""One incarnation of the scheduler; compared for equality only."""
BootId = NewType("BootId", str)
"""One incarnation of a peer."""


def new_job_id() -> JobId:
    return JobId(secrets.token_hex(8))


def new_epoch() -> Epoch:
    return Epoch(secrets.token_hex(4))


def new_boot_id() -> BootId:
    return BootId(secrets.token_hex(6))


def ids_digest(ids: Iterable[str]) -> int:
    """Digest a set of ids, whatever their order: what two sides of a link compare in a beat."""
    digest = 0
    for each in ids:
        digest ^= crc32(each.encode())
    return digest
