"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Config file; else $GRIDCORE_CONFIG, else ~/.config/gridcore/config.yaml.",
    ),
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="Profiles, logs and lock; a daemon of its own. Else ~/.local/state/gridcore.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as /admin/state names it.")]
