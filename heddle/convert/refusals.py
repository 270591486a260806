"""Arguments that may have one value only, or may not be given."""

from __future__ import annotations

from collections.abc import Mapping

from heddle.convert.words import Words
from heddle_operator.apis.errors import InvalidArguments

# {argument: (its value, where it is given; None: it is refused as it stands; the reason)}
Rules = Mapping[str, tuple[float | str | None, str]]


def refuse_others(words: Words, rules: Rules) -> None:
    """Refuse the first argument with another value than its rule says.

    Raises:
        InvalidArguments: that one.
    """
    for name, (wanted, why) in rules.items():
        given = " ".join(words.values.get(name, ())) or "given"
        if words.has(name) and (wanted is None or not _is(given, wanted)):
            allowed = "leave it out" if wanted is None else f"give {wanted} or leave it out"
            raise InvalidArguments(
                f"{name} is {given}; {why}, {allowed}", field=name, code="Unsupported"
            )


def _is(given: str, wanted: float | str) -> bool:
    try:
        return given == wanted or float(given) == wanted
    except ValueError:
        return False
