"""The formulas of g and h as Triton functions, made from the objects that have them.

A kernel takes g and h from `AngularFunction.value_and_slopes` and
`MagnitudeFunction.ratio_and_slopes`, the same methods that torch.compile sees. Their operations are
recorded once on a single number and written down again in Triton's language, a line each. So a new
activation or magnitude needs no Triton code; what uses an operation beyond the table below is
computed without these kernels.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from ....angular_functions import AngularFunction
    from ....magnitude_base import MagnitudeFunction

__all__ = ["Untranslatable", "angular_source", "compile_function", "magnitude_source"]

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
    "maximum": "tl.where({0} < {1}, {1}, {0})",
    "minimum": "tl.where({0} > {1}, {1}, {0})",
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
# Shapes and types are the kernel's business.
_IDENTITIES = {"alias", "clone", "detach", "expand", "expand_as", "view", "unsqueeze", "squeeze"}
_IDENTITIES |= {"lift_fresh", "lift_fresh_copy", "to", "_to_copy", "copy", "broadcast_to"}
_IDENTITIES |= {"reshape", "view_as", "_unsafe_view"}
_CONSTANTS = {"zeros_like": 0.0, "new_zeros": 0.0, "ones_like": 1.0, "new_ones": 1.0}
_CONSTANTS |= {"zeros": 0.0, "ones": 1.0}
_FULL = "tl.full((1, 1), {0}, tl.float32)"
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}


class Untranslatable(Exception):
    """A formula that these kernels cannot compute; the message names the operation."""


def angular_source(function: AngularFunction, k: float | None, eps: float) -> str:
    """The source of g(c, k): value, slope in cos(theta), slope in k.

    Args:
        function: the formulas of g.
        k: its parameter as a number; None where the kernel gets it as a tensor, or g has none.
        eps: rounding error of the cosines.
    """

    def formula(c: Tensor, parameter: Tensor) -> tuple[Tensor, ...]:
        given = k if k is not None or function.default_k is None else parameter
        value, slope, of_k = function.value_and_slopes(c, given, eps)
        return value, slope, torch.zeros_like(c) if of_k is None else of_k

    return _source("g", formula, ("c", "k"))


def magnitude_source(function: MagnitudeFunction, alpha: float, beta: float) -> str:
    """The source of h(n, radius): h / n, slope in n, slope in the radius."""

    def formula(n: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
        ratio, slope, of_radius = function.ratio_and_slopes(n, alpha, beta, radius)
        return ratio, slope, torch.zeros_like(n) if of_radius is None else of_radius

    return _source("h", formula, ("n", "radius"))


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


def _source(
    name: str, formula: Callable[..., tuple[Tensor, ...]], arguments: tuple[str, ...]
) -> str:
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        recorded = make_fx(formula)(*(torch.full((1,), 0.5) for _ in arguments))
    names: dict[fx.Node, str] = {}
    lines: list[str] = []
    inputs = iter(arguments)
    for node in recorded.graph.nodes:
        if node.op == "placeholder":
            names[node] = next(inputs)
        elif node.op == "get_attr":
            names[node] = _number(float(getattr(recorded, node.target)))
        elif node.op == "call_function":
            names[node] = f"v{len(lines)}"
            lines.append(f"    {names[node]} = {_expression(node, names)}")
        else:
            results = ", ".join(names[value] for value in node.args[0])
            lines.append(f"    return {results}")
    return f"def {name}({', '.join(arguments)}):\n" + "\n".join(lines) + "\n"


def _expression(node: fx.Node, names: dict[fx.Node, str]) -> str:
    operation = node.target._schema.name.removeprefix("aten::").rstrip("_")  # type: ignore[union-attr]
    values = [_operand(value, names) for value in node.args]
    if operation in _CONSTANTS:
        return _FULL.format(_CONSTANTS[operation])
    if operation in _FILLED:
        return _FULL.format(values[_FILLED[operation]])
    if operation in _IDENTITIES:
        return values[0]
    if operation in ("add", "sub"):
        alpha = node.kwargs.get("alpha", 1)
        second = values[1] if alpha == 1 else f"{values[1]} * {_operand(alpha, names)}"
        return f"{values[0]} {'+' if operation == 'add' else '-'} {second}"
    if operation == "rsub":
        return f"{values[1]} - {values[0]}"
    if operation in ("addcmul", "addcdiv"):
        sign = "*" if operation == "addcmul" else "/"
        factor = _operand(node.kwargs.get("value", 1), names)
        return f"{values[0]} + {factor} * {values[1]} {sign} {values[2]}"
    if operation == "clamp":
        return _clamp(*(*values, "None")[:3])
    if operation == "pow" and node.args[1] in (2, 3):
        return " * ".join([values[0]] * int(node.args[1]))  # type: ignore[arg-type, call-overload]
    if operation not in _EXPRESSIONS:
        raise Untranslatable(f"the kernels have no form of {node.target}")
    return _EXPRESSIONS[operation].format(*values)


def _clamp(value: str, low: str, high: str) -> str:
    clamped = value if low == "None" else f"tl.where({value} < {low}, {low}, {value})"
    return clamped if high == "None" else f"tl.where({value} > {high}, {high}, {clamped})"


def _operand(value: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    return _number(float(value)) if isinstance(value, (int, float)) else str(value)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
