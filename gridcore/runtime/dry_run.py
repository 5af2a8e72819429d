"""Asks a llama-server what a model would take: its fit pass, and then its end.

``--fit on --log-jsonl`` makes it print a breakdown before it loads anything. It is started with
the environment of a runtime and ended with the first such line.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridcore.errors import GridcoreError
from gridcore.runtime.argv import child_env
from gridcore.runtime.process import SpawnError, first_line_of

if TYPE_CHECKING:
    from gridcore.gguf.breakdown import Row

TIMEOUT_S = 30.0
"""A tenth of a second for any model; a CUDA build loads its libraries first."""


class DryRunError(GridcoreError):
    """No breakdown could be had; the text says why."""


def ask(binary: str, path: str, args: Sequence[str], env: Mapping[str, str]) -> "tuple[Row, ...]":
    """Return what this llama-server says that a model takes with these arguments.

    Args:
        args: llama-server's arguments without the model.
        env: variables of the model, as the config has them.

    Raises:
        DryRunError: it cannot be started, refuses an argument or the file, or is too old.
    """
    from gridcore.gguf.breakdown import read_breakdown  # noqa: PLC0415 - rarely needed

    found = shutil.which(binary)
    if found is None:
        raise DryRunError(f"{binary} is not a program that can be run")
    with tempfile.TemporaryDirectory(prefix="gridcore-fit-") as directory:
        argv = [found, "--model", path, "--host", str(Path(directory) / "fit.sock")]
        argv += [*args, "--fit", "on", "--log-jsonl"]
        environment = child_env(
            os.environ, instance_id="", load_id="", config_home=directory, user_env=env
        )
        try:
            line, said = first_line_of(
                argv, environment, TIMEOUT_S, lambda line: read_breakdown(line) is not None
            )
        except SpawnError as error:
            raise DryRunError(str(error)) from error
    rows = read_breakdown(line)
    if not rows:
        raise DryRunError(f"{found} printed no breakdown of memory{_reason(said)}")
    return rows


def _reason(said: list[str]) -> str:
    errors = [line for line in said if "error" in line.lower()]
    chosen = (errors or said)[-1:]
    if not chosen:
        return "; builds before --log-jsonl cannot"
    return f"; its last line: {chosen[0][:200]}"
