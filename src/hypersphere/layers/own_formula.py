"""What a subclass of Angular or Magnitude has to define, said when it is made."""

from __future__ import annotations

__all__ = ["require_value"]


def require_value(part: object, base: type, argument: str, meaning: str) -> None:
    """Refuse a part that has neither a registered name nor a formula of its own.

    Args:
        part: an Angular or a Magnitude.
        base: the class that leaves the formula open.
        argument: what `value` takes.
        meaning: what `value` gives.

    Raises:
        TypeError: if the class of the part defines none of `value`, `forward` and `kind`.
    """
    if all(getattr(type(part), n) is getattr(base, n) for n in ("value", "forward", "kind")):
        raise TypeError(f"{type(part).__name__} has to define value(self, {argument}), {meaning}")
