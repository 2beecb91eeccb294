"""Settings are checked where they are made, whether they come from code, a command line or a file."""

import dataclasses
import math
from numbers import Integral, Real
from typing import Any

KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def check_types(settings: Any) -> None:
    """Refuse a dataclass with a value that is not of its field's type. Fields of other types than these four are not
    looked at; a whole number does for a float.

    Raises:
        ValueError: naming the field and what it takes.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.type in KINDS and not _fits(value, field.type):
            raise ValueError(f"{field.name} takes {KINDS[field.type]}, not {_short(value)}")


def _fits(value: Any, kind: type) -> bool:
    if kind in (bool, str):
        return isinstance(value, kind)
    number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return number and abs(value) < 2**63 and math.isfinite(value)


def _short(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else f"a {type(value).__name__}"
    return repr(value) if isinstance(value, str | bool | int | None) and len(str(value)) < 40 else shown
