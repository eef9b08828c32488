"""The formulas of g and h as Triton functions."""

from __future__ import annotations

import linecache
import math
from typing import TYPE_CHECKING, Any

from ..formulas import Language, Written, angular_lines, magnitude_lines

if TYPE_CHECKING:
    from ....angular_functions import AngularFunction
    from ....magnitude_base import MagnitudeFunction

__all__ = ["angular_source", "compile_function", "magnitude_source"]

# Comparisons let NaN through, where tl.maximum and tl.minimum may drop it.
_EXPRESSIONS: dict[str, str] = {
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "asin": "asin({0})",
    "tanh": "tanh({0})",
    "sigmoid": "tl.sigmoid({0})",
    "abs": "tl.abs({0})",
    "square": "{0} * {0}",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "maximum": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "minimum": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    "float": "({0}).to(tl.float32)",
    "clamp_min": "tl.where({0} < {1}, {1}, {0})",
    "clamp_max": "tl.where({0} > {1}, {1}, {0})",
    "where": "tl.where({0}, {1}, {2})",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "logical_and": "{0} & {1}",
    "bitwise_and": "{0} & {1}",
    "logical_not": "{0} == 0",
    "isfinite": "tl.abs({0}) < float('inf')",
}


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"


_TRITON = Language(_EXPRESSIONS, _number, "tl.full((1, 1), {0}, tl.float32)")


def angular_source(function: AngularFunction, k: float | None, eps: float) -> str:
    """The source of g(c, k): value, slope in cos(theta), slope in k.

    Args:
        function: the formulas of g.
        k: its parameter as a number; None where the kernel gets it as a tensor, or g has none.
        eps: rounding error of the cosines.
    """
    return _source("g", ("c", "k"), angular_lines(function, k, eps, _TRITON))


def magnitude_source(function: MagnitudeFunction, alpha: float, beta: float) -> str:
    """The source of h(n, radius): h / n, slope in n, slope in the radius."""
    return _source("h", ("n", "radius"), magnitude_lines(function, alpha, beta, _TRITON))


def compile_function(source: str, name: str, scope: dict[str, Any]) -> Any:
    """A function from its source, which Triton can read again.

    Args:
        source: text of a function.
        name: its name.
        scope: what the text refers to.
    """
    place = f"hypersphere-triton-{name}-{abs(hash(source)):x}"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    found: dict[str, Any] = {**scope, "__name__": __name__}
    exec(compile(source, place, "exec"), found)
    return found[name]


def _source(name: str, arguments: tuple[str, ...], written: Written) -> str:
    lines = [f"    {line.name} = {line.text}" for line in written.lines]
    results = ", ".join(line.name for line in written.results)
    return "\n".join([f"def {name}({', '.join(arguments)}):", *lines, f"    return {results}\n"])
