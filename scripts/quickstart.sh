#!/usr/bin/env bash
# A chat with a real model, from nothing: an environment, two small models, a config, the daemon.
# Arguments go to `gridcore serve`: scripts/quickstart.sh --listen 127.0.0.1:9000
set -euo pipefail

# shellcheck source=scripts/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

# Where `gridcore serve` will keep its state: the config lies beside it.
state_dir="${XDG_STATE_HOME:-$HOME/.local/state}/gridcore"
own_config=no
previous=""
for argument in "$@"; do
  case "$argument" in
    -h | --help)
      say "usage: scripts/quickstart.sh [arguments of gridcore serve]"
      say "  --listen HOST:PORT   where the API listens (127.0.0.1:8080)"
      say "  --state-dir DIR      where quickstart.yaml, models and logs go ($state_dir)"
      exit 0
      ;;
    --state-dir=*) state_dir="${argument#*=}" ;;
    --config | --config=* | --simulation) own_config=yes ;;
    *) if [[ "$previous" == "--state-dir" ]]; then state_dir="$argument"; fi ;;
  esac
  previous="$argument"
done

ensure_venv
ensure_installed embedded
if [[ $own_config == yes ]]; then
  step "Starting GridCore"
  exec "$VENV/bin/gridcore" serve "$@"
fi
ensure_models
config="$("$VENV/bin/python" "$ROOT/scripts/quickstart-config.py" "$state_dir")" ||
  fail "the models or the config could not be written to $state_dir (see above)."
step "Starting GridCore with $config"
exec "$VENV/bin/gridcore" serve --config "$config" "$@"
