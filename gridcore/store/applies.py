"""Does a stored measurement hold for what is configured now, and if not, why. Pure."""

from collections.abc import Sequence

from gridcore.store.profiles import Conditions, Profile


def why_not(profile: Profile, now: Conditions | None) -> str:
    """Say why a measurement does not apply; empty if it does.

    Args:
        now: the conditions of its model as it is configured; None if there is no such model.
    """
    if now is None:
        return "no such model in the config"
    then = profile.conditions
    if then is None:
        return "written by an earlier version"
    if then.key == now.key:
        return ""
    reasons = []
    if then.card != now.card:
        reasons.append(f"other card ({then.card}, now {now.card})")
    if then.build != now.build:
        reasons.append(f"other build ({_short(then.build)}, now {_short(now.build)})")
    if then.file != now.file:
        reasons.append("the model's file has changed")
    if then.args != now.args:
        reasons.append(f"changed settings ({_difference(then.args, now.args)})")
    return "; ".join(reasons)


def _short(build: str) -> str:
    """A path's last part and its digest, or a version as it is."""
    return build.rpartition("/")[2]


def _difference(then: Sequence[str], now: Sequence[str]) -> str:
    """Name the settings that differ: ``-c 4096, now -c 8192``."""
    before, after = _settings(then), _settings(now)
    gone = [setting for setting in before if setting not in after]
    new = [setting for setting in after if setting not in before]
    if not gone and not new:
        return "another order"
    return f"{' '.join(gone) or 'nothing'}, now {' '.join(new) or 'nothing'}"


def _settings(args: Sequence[str]) -> list[str]:
    """Join each option with its value."""
    settings: list[str] = []
    for word in args:
        is_option = word.startswith("-") and not word[1:2].isdigit()
        if settings and not is_option and " " not in settings[-1] and "=" not in word:
            settings[-1] += f" {word}"
        else:
            settings.append(word)
    return settings
