"""What a client says about its request beside the request: class, longest wait, quality.

Pure. Header over body over model suffix over the configured default. A value that is not known
is an error that names the channel: a typo must not turn background work into a chat.
"""

from msgspec import Struct, field

from gridcore.config.schema import Tier, Workload
from gridcore.http.body import Body
from gridcore.http.openai import bad_request
from gridcore.units import NS_PER_MS

HEADER_CLASS = "X-GridCore-Class"
HEADER_MAX_WAIT = "X-GridCore-Max-Wait-Ms"
HEADER_QUALITY = "X-GridCore-Quality"
MAX_WAIT_MS_MAX = 30 * 24 * 3600 * 1000
"""30 days: longer is a mistake in the unit."""

_SERVICE_TIERS = {"flex": Workload.BACKGROUND, "priority": Workload.INTERACTIVE}


class GridcoreOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The ``gridcore`` object of a body."""

    workload: str | None = field(default=None, name="class")
    max_wait_ms: int | None = None
    quality: str | None = None


class Channels(Struct, frozen=True, kw_only=True):
    workload: Workload
    class_from: str
    max_wait_ns: int | None = None
    quality: Tier | None = None


NO_OPTIONS = GridcoreOptions()


def read_channels(
    headers: dict[bytes, bytes],
    body: Body,
    *,
    suffix: Workload | None,
    default: Workload,
) -> Channels:
    """Work out class, longest wait and quality of one request.

    Raises:
        ApiError: 400, naming the channel, for a value that is not known.
    """
    options = body.get("gridcore", GridcoreOptions, NO_OPTIONS)
    workload, class_from = _class(headers, body, options, suffix=suffix, default=default)
    return Channels(
        workload=workload,
        class_from=class_from,
        max_wait_ns=_max_wait_ns(_header(headers, HEADER_MAX_WAIT), options.max_wait_ms),
        quality=_quality(_header(headers, HEADER_QUALITY), options.quality),
    )


def _header(headers: dict[bytes, bytes], name: str) -> str:
    return headers.get(name.lower().encode(), b"").decode("latin-1").strip()


def _class(
    headers: dict[bytes, bytes],
    body: Body,
    options: GridcoreOptions,
    *,
    suffix: Workload | None,
    default: Workload,
) -> tuple[Workload, str]:
    named = _header(headers, HEADER_CLASS)
    if named:
        return _workload(named, HEADER_CLASS), "header"
    if options.workload is not None:
        return _workload(options.workload, "gridcore.class"), "body"
    if "service_tier" in body.fields:
        tier = _SERVICE_TIERS.get(bytes(body.fields["service_tier"]).decode().strip('"'))
        if tier is not None:
            return tier, "service_tier"
    if suffix is not None:
        return suffix, "suffix"
    return default, "default"


def _workload(text: str, param: str) -> Workload:
    try:
        return Workload(text.lower())
    except ValueError:
        known = ", ".join(Workload)
        raise bad_request(
            "invalid_class", f"{param}: the class {text[:100]!r} is not one of {known}", param=param
        ) from None


def _max_wait_ns(header: str, option: int | None) -> int | None:
    param = HEADER_MAX_WAIT if header else "gridcore.max_wait_ms"
    if header:
        ms = int(header) if header.isascii() and header.isdigit() and len(header) < 16 else -1
    elif option is None:
        return None
    else:
        ms = option
    if not 0 <= ms <= MAX_WAIT_MS_MAX:
        raise bad_request(
            "invalid_max_wait",
            f"{param}: {header or option} is not a number of milliseconds "
            f"from 0 to {MAX_WAIT_MS_MAX}",
            param=param,
        )
    return ms * NS_PER_MS


def _quality(header: str, option: str | None) -> Tier | None:
    text = header or option
    if not text:
        return None
    param = HEADER_QUALITY if header else "gridcore.quality"
    try:
        return Tier(text.lower())
    except ValueError:
        known = ", ".join(Tier)
        raise bad_request(
            "invalid_quality",
            f"{param}: the quality {text[:100]!r} is not one of {known}",
            param=param,
        ) from None
