#!/usr/bin/env bash
# Every check and every test. Arguments go to pytest: scripts/test.sh -k lock -x
# A path among them runs only that: scripts/test.sh tests/unit/test_units.py
set -uo pipefail

# shellcheck source=scripts/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv
ensure_installed dev,embedded
ensure_models
cd "$ROOT" || exit 1
export PATH="$VENV/bin:$PATH"

names=() verdicts=() durations=() endings=()
failures=0

# check NAME COMMAND...: run it, remember how it went; never stop the others.
check() {
  local name="$1" began status=0 log
  shift
  log="$(mktemp)"
  began=$SECONDS
  step "$name"
  "$@" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  # pytest ends with 5 when a filter of the caller's own left nothing in this group.
  if [[ "$name" == pytest* && $status == 5 && $filtered == yes ]]; then status=0; fi
  names+=("$name") durations+=($((SECONDS - began)))
  if ((status)); then
    verdicts+=("${RED}FAILED${PLAIN}")
    failures=$((failures + 1))
  else
    verdicts+=("${GREEN}ok${PLAIN}    ")
  fi
  if [[ "$name" == pytest* ]]; then
    # Its own last line: `=== 12 passed in 3.4s ===`.
    endings+=("$(grep -E '(passed|failed|error|skipped|no tests ran).* in [0-9.]+s' "$log" | tail -n 1)")
  else
    endings+=("")
  fi
  rm -f "$log"
}

filtered=no paths=no
for argument in "$@"; do
  filtered=yes
  if [[ "$argument" != -* && -e "${argument%%::*}" ]]; then paths=yes; fi
done

if [[ $paths == yes ]]; then
  check "pytest" pytest "$@"
else
  check "format" ruff format --check .
  check "lint" ruff check .
  check "types" mypy
  check "import contracts" lint-imports
  for script in config-docs memory-table; do
    if [[ -f "scripts/$script.py" ]]; then
      check "docs: $script" python "scripts/$script.py" --check
    fi
  done
  # Pure tests share the cores; those with processes and sockets have them to themselves.
  quiet=() loud=()
  for folder in tests/*/; do
    if [[ -z "$(find "$folder" -name 'test_*.py')" ]]; then continue; fi
    case "$folder" in
      tests/integration/ | tests/e2e/) loud+=("$folder") ;;
      *) quiet+=("$folder") ;;
    esac
  done
  check "pytest: pure" pytest -n 2 "${quiet[@]}" "$@"
  check "pytest: processes" pytest "${loud[@]}" "$@"
fi

say
for index in "${!names[@]}"; do
  printf '%s %4ss  %-22s %s\n' \
    "${verdicts[index]}" "${durations[index]}" "${names[index]}" "${endings[index]}"
done
if ((failures)); then
  say "$RED$failures of ${#names[@]} checks failed$PLAIN"
  exit 1
fi
