"""``gridcore fit``: what any GGUF file takes and whether a card holds it, without a config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.errors import GridcoreError
from gridcore.gguf.estimate import Backend
from gridcore.units import MB, format_mb

if TYPE_CHECKING:
    from rich.console import Console

    from gridcore.gguf.estimate import Estimate, Footprint
    from gridcore.gguf.fit import Fit, Question
    from gridcore.gguf.header import Header

_PIPED_WIDTH = 160  # wide enough for every row; a pipe has no width of its own
_CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)


def fit(  # noqa: PLR0917 - options of a command, each by its name
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file, or its first part.")],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- FLAGS]", help="llama-server's flags, after --."),
    ] = None,
    backend: Annotated[
        Backend, typer.Option("--backend", help="What runs the device.")
    ] = Backend.PLAIN,
    card: Annotated[
        int | None, typer.Option("--card", metavar="MB", min=1, help="Memory of the card.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask llama-server instead of the rules.")
    ] = False,
    llama_server: Annotated[
        str, typer.Option("--llama-server", metavar="PROGRAM", help="Which one to ask.")
    ] = "llama-server",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a model takes, and whether and how it fits a card."""
    from gridcore.gguf.fit import fit_card  # noqa: PLC0415

    question = _question(file, flags or [], backend)
    found = question.estimate()
    if dry_run or not found.is_known:
        found = _asked(question, found, llama_server, must=dry_run)
    answer = fit_card(question, card * MB, found) if card is not None else None
    if json:
        typer.echo(_json(found, answer))
    else:
        _print(question, found, answer)


def _question(file: Path, args: list[str], backend: Backend) -> "Question":
    from gridcore.gguf.fit import Question  # noqa: PLC0415
    from gridcore.gguf.flags import parse_flags  # noqa: PLC0415
    from gridcore.gguf.header import read_header  # noqa: PLC0415

    flags = parse_flags(args)
    return Question(
        header=read_header(file),
        args=tuple(args),
        backend=backend,
        mmproj=_companion(flags.mmproj, "--mmproj"),
        draft=_companion(flags.draft_model, "--spec-draft-model"),
    )


def _asked(question: "Question", found: "Estimate", llama_server: str, *, must: bool) -> "Estimate":
    """What the user's own llama-server says; the rules' answer if it is not asked for."""
    import msgspec  # noqa: PLC0415

    from gridcore.gguf.breakdown import with_breakdown  # noqa: PLC0415
    from gridcore.runtime import dry_run  # noqa: PLC0415

    args = list(question.args)
    if question.backend is Backend.CPU:
        args += ["-ngl", "0"]
    try:
        rows = dry_run.ask(llama_server, question.header.path, args, {})
    except dry_run.DryRunError as error:
        if must:
            raise
        note = f"llama-server was not asked instead: {error}"
        return msgspec.structs.replace(found, notes=(*found.notes, note))
    return with_breakdown(found, rows)


def _companion(path: str | None, flag: str) -> "Header | None":
    from gridcore.gguf.header import read_header  # noqa: PLC0415

    if path is None:
        return None
    try:
        return read_header(path)
    except GridcoreError as error:
        raise GridcoreError(f"{flag}: {error}") from error


def _json(found: "Estimate", answer: "Fit | None") -> str:
    import msgspec  # noqa: PLC0415

    report: dict[str, object] = {
        "device": _footprint(found.device),
        "host": _footprint(found.host),
        "unified_total_bytes": found.unified_total_bytes,
        "verified": found.verified,
        "source": found.source,
        "notes": list(found.notes),
        "n_ctx": found.n_ctx,
        "n_slots": found.n_slots,
    }
    if answer is not None:
        report |= {
            "card_bytes": answer.card_bytes,
            "needed_bytes": answer.needed_bytes,
            "fits": answer.fits,
            "largest_context": answer.largest_context,
            "suggestions": answer.suggestions,
        }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _footprint(footprint: "Footprint") -> dict[str, int]:
    return {
        "weights_bytes": footprint.weights_bytes,
        "context_bytes": footprint.context_bytes,
        "compute_bytes": footprint.compute_bytes,
        "overhead_bytes": footprint.overhead_bytes,
        "total_bytes": footprint.total_bytes,
    }


def _print(question: "Question", found: "Estimate", answer: "Fit | None") -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPED_WIDTH)
    name = question.header.metadata.get("general.name")
    title = name if isinstance(name, str) else Path(question.header.path).name
    console.print(
        f"{title}: {question.header.architecture}, context {found.n_ctx}, "
        f"{found.n_slots} slots, backend {question.backend}"
        + (", by a dry run of llama-server" if found.source == "dry-run" else ""),
        markup=False,
    )
    rows = [[part.what, part.where, format_mb(part.bytes), part.rule] for part in found.parts]
    if found.device.total_bytes:
        rows.append(["total", "device", format_mb(found.device.total_bytes), ""])
    rows.append(["total", "host", format_mb(found.host.total_bytes), ""])
    _table(console, ["PART", "WHERE", "SIZE", "RULE"], rows)
    _print_contexts(console, question, found)
    if answer is not None:
        _print_answer(console, answer)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)


def _print_contexts(console: "Console", question: "Question", found: "Estimate") -> None:
    """What other contexts and cache types would cost."""
    from gridcore.gguf.fit import needed_bytes  # noqa: PLC0415

    if not found.device.context_bytes + found.host.context_bytes:
        return
    rows = []
    for n_ctx in sorted({*_CONTEXTS, found.n_ctx}):
        row = [str(n_ctx)]
        for cache in ("f16", "q8_0", "q4_0"):
            more = ["-c", str(n_ctx), "-ctk", cache, "-ctv", cache]
            if cache != "f16":
                more += ["-fa", "on"]  # a quantized V needs it
            row.append(format_mb(needed_bytes(question.estimate(*more), question.backend)))
        rows.append(row)
    console.print()
    _table(console, ["CONTEXT", "CACHE F16", "Q8_0", "Q4_0"], rows)


def _print_answer(console: "Console", answer: "Fit") -> None:
    console.print()
    verdict = "fits" if answer.fits else "does not fit"
    console.print(
        f"It {verdict}: {format_mb(answer.needed_bytes)} of {format_mb(answer.card_bytes)}.",
        style="green" if answer.fits else "red",
        markup=False,
    )
    largest = answer.largest_context
    console.print(
        f"Largest context that fits: {largest}"
        if largest is not None
        else "No context fits with these flags."
    )
    if answer.suggestions:
        console.print("It would fit with:")
        rows = [
            [
                " ".join(suggestion.flags),
                format_mb(suggestion.device_total_bytes),
                format_mb(suggestion.host_total_bytes),
                suggestion.effect,
            ]
            for suggestion in answer.suggestions
        ]
        _table(console, ["FLAGS", "DEVICE", "HOST", "EFFECT"], rows)
    elif not answer.fits:
        console.print("No flag known here makes it fit.")


def _table(console: "Console", head: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(head):
        numeric = all(row[index][:1].isdigit() for row in rows if row[index])
        table.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
