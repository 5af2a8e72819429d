"""What a process loads by being started: five of them run all day on somebody's computer."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WEB = {"aiohttp", "starlette", "uvicorn"}
TERMINAL = {"httpx", "rich", "typer"}
NEVER = {"numpy", "gguf", "openai"}
"""gguf (the package) is for its constants in tests; it brings numpy, 30 MB."""

HEAVY_BY_MODULE = {
    "services.gateway": TERMINAL | NEVER,
    "services.gpu_monitor": WEB | TERMINAL | NEVER,
    "services.launcher": WEB | TERMINAL | NEVER,
    "services.metrics_exporter": WEB | TERMINAL | NEVER,
    "services.scheduler": WEB | TERMINAL | NEVER,
    "services.supervisor": WEB | TERMINAL | NEVER,
    "gridcore.runtime.simulated": WEB | TERMINAL | NEVER | {"zmq"},
}


@pytest.mark.parametrize("module", sorted(HEAVY_BY_MODULE))
def test_a_process_loads_nothing_it_has_no_use_for(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split()) & HEAVY_BY_MODULE[module]
    assert not loaded, f"{module} loads {sorted(loaded)} at import"
