#!/usr/bin/env bash
# Run seeds of the simulated world: scripts/simulate.sh [HOW_MANY [EVENTS]]
#
# The first seed follows from the commit, so that each commit lives through other days and every
# run can be repeated; FIRST=123 chooses it. One process a core; a failing seed prints the line
# that replays it.
set -euo pipefail

# shellcheck source=scripts/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv
ensure_installed dev
cd "$ROOT"

count="${1:-500}" events="${2:-2000}"
first="${FIRST:-$((16#$(git rev-parse HEAD 2>/dev/null | cut -c1-7 || echo 1)))}"
shards="$(getconf _NPROCESSORS_ONLN)"
say "seeds $first to $((first + count - 1)), $events events each (FIRST=$first to repeat)"

pids=()
for ((shard = 0; shard < shards; shard++)); do
  from=$((first + count * shard / shards)) to=$((first + count * (shard + 1) / shards))
  if ((from < to)); then
    "$VENV/bin/python" -m gridcore.sim.run --brief --seeds "$from:$to" --events "$events" &
    pids+=($!)
  fi
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit "$status"
