"""The formulas of g and h written down in another language, from the objects that have them.

A kernel takes g and h from `AngularFunction.value_and_slopes` and
`MagnitudeFunction.ratio_and_slopes`, the same methods that torch.compile sees. Their operations are
recorded once on two numbers and written down again, a line each, in Triton's language
(triton/translate.py) or in C++ (native/translate.py). So a new activation or magnitude needs no
kernel of its own; what uses an operation beyond the table of a language is computed without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from ...angular_functions import AngularFunction
    from ...magnitude_base import MagnitudeFunction

__all__ = ["Language", "Line", "Untranslatable", "Written", "angular_lines", "magnitude_lines"]

# Shapes and types are the kernel's business.
_IDENTITIES = {"alias", "clone", "detach", "expand", "expand_as", "view", "unsqueeze", "squeeze"}
_IDENTITIES |= {"broadcast_to", "reshape", "view_as", "contiguous"}
_CONVERSIONS = {"to", "as_tensor", "float", "type_as"}
# Several names of one operation; operators of Python have theirs, too.
_ALIASES = {"truediv": "div", "true_divide": "div", "divide": "div", "rtruediv": "rdiv"}
_ALIASES |= {"multiply": "mul", "rmul": "mul", "subtract": "sub", "radd": "add", "negative": "neg"}
_ALIASES |= {"absolute": "abs", "arcsin": "asin", "clip": "clamp", "greater": "gt", "less": "lt"}
_ALIASES |= {
    "greater_equal": "ge",
    "less_equal": "le",
    "and": "logical_and",
    "invert": "logical_not",
}
_CONSTANTS = {"zeros_like": 0.0, "new_zeros": 0.0, "ones_like": 1.0, "new_ones": 1.0}
_CONSTANTS |= {"zeros": 0.0, "ones": 1.0}
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "new_tensor": 1, "scalar_tensor": 0}


class Untranslatable(Exception):
    """A formula that a language cannot express; the message names the operation."""


class Language(NamedTuple):
    """How a language writes the operations of formulas.

    Args:
        expressions: for each operation a text with {0}, {1}, ... for its operands.
        number: writes a number down.
        full: a text with {0} for a number that stands for a tensor.
    """

    expressions: Mapping[str, str]
    number: Callable[[float], str]
    full: str = "{0}"

    def where(self, condition: str, value: str, other: str) -> str:
        return self.expressions["where"].format(condition, value, other)


class Line(NamedTuple):
    """One operation: its result, its text, and the arguments of the formula that it depends on."""

    name: str
    text: str
    depends: frozenset[str]


class Written(NamedTuple):
    """A formula: its lines in order, and the names of its results."""

    lines: list[Line]
    results: list[Line]


def angular_lines(
    function: AngularFunction, k: float | None, eps: float, language: Language
) -> Written:
    """g(c, k): value, slope in cos(theta), slope in k.

    Args:
        function: the formulas of g.
        k: its parameter as a number; None where the kernel gets it as a tensor, or g has none.
        eps: rounding error of the cosines.
        language: in which to write it.
    """

    def formula(c: Tensor, parameter: Tensor) -> tuple[Tensor, ...]:
        given = k if k is not None or function.default_k is None else parameter
        value, slope, of_k = function.value_and_slopes(c, given, eps)
        return value, slope, torch.zeros_like(c) if of_k is None else of_k

    return _write(formula, ("c", "k"), "g", language)


def magnitude_lines(
    function: MagnitudeFunction, alpha: float, beta: float, language: Language
) -> Written:
    """h(n, radius): h / n, slope in n, slope in the radius."""

    def formula(n: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
        ratio, slope, of_radius = function.ratio_and_slopes(n, alpha, beta, radius)
        return ratio, slope, torch.zeros_like(n) if of_radius is None else of_radius

    return _write(formula, ("n", "radius"), "h", language)


def _write(
    formula: Callable[..., tuple[Tensor, ...]],
    arguments: tuple[str, ...],
    prefix: str,
    language: Language,
) -> Written:
    # Two numbers: a formula that asks for the value of one cannot be written down, and fails here.
    inputs = [torch.tensor([0.5, 0.3]) for _ in arguments]
    try:
        with torch.no_grad(), _Recorder() as recorded:
            results = formula(*inputs)
    except Exception as error:
        raise Untranslatable(str(error)) from error
    names = zip(inputs, arguments, strict=True)
    known = {id(tensor): Line(name, name, frozenset([name])) for tensor, name in names}

    def line_of(tensor: Tensor) -> Line:
        if id(tensor) not in known:  # no operation made it: a number of the formula
            if tensor.requires_grad or tensor.numel() != 1:
                raise Untranslatable("the formula has a tensor of its own, which may change")
            number = language.number(float(tensor))
            known[id(tensor)] = Line(number, number, frozenset())
        return known[id(tensor)]

    lines: list[Line] = []
    for operation in recorded.operations:
        used = [line_of(v) for v in operation.values if isinstance(v, Tensor)]
        text = _expression(operation, line_of, language)
        depends = frozenset[str]().union(*(line.depends for line in used))
        # An operation in place gives its result to the tensor that it has changed.
        known[id(operation.result)] = Line(f"{prefix}{len(lines)}", text, depends)
        lines.append(known[id(operation.result)])
    return Written(lines, [line_of(result) for result in results])


class _Operation(NamedTuple):
    name: str
    values: tuple[Any, ...]
    options: Mapping[str, Any]
    result: Tensor


class _Recorder(TorchFunctionMode):
    """Notes the operations that run while it is active.

    Those that the formula itself calls: a mode that sees what they are made of would have torch
    load its compiler, which takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []  # which keep their tensors, so that ids are unique
        self.seen: dict[int, set[int]] = {}  # tensors by their memory

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name, own = function.__name__.strip("_"), function.__name__
        if name == "setitem" or (isinstance(result, tuple) and any(map(torch.is_tensor, result))):
            raise Untranslatable(f"the kernels have no form of {name}")
        if isinstance(result, Tensor):  # and no shape, type or device
            for tensor in (result, *(a for a in args if isinstance(a, Tensor))):
                self.seen.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
            views = self.seen[result.untyped_storage().data_ptr()]
            if own.endswith("_") and not own.startswith("_") and len(views) > 1:
                raise Untranslatable(f"{own} changes a tensor of which there is a view")
            operation = _Operation(_ALIASES.get(name, name), args, kwargs or {}, result)
            self.operations.append(operation)
        return result


def _expression(
    operation: _Operation, line_of: Callable[[Tensor], Line], language: Language
) -> str:
    def text_of(value: Any) -> str:
        if isinstance(value, Tensor):
            return line_of(value).name
        return language.number(float(value)) if isinstance(value, (int, float)) else str(value)

    name, values = operation.name, [text_of(value) for value in operation.values]
    if name in _CONSTANTS:
        return language.full.format(language.number(_CONSTANTS[name]))
    if name in _FILLED and len(values) > _FILLED[name]:
        return language.full.format(values[_FILLED[name]])
    if name in _CONVERSIONS and values and operation.result.is_floating_point():
        given = operation.values[0]
        if isinstance(given, Tensor) and not given.is_floating_point():
            if given.dtype != torch.bool:
                raise Untranslatable("the kernels have no whole numbers")
            return language.expressions["float"].format(values[0])
        return values[0]
    if name in _IDENTITIES and values:
        return values[0]
    if operation.options.keys() - {"alpha", "value", "dtype", "device"}:
        raise Untranslatable(f"the kernels read {name} with its arguments in order, not by name")
    if name in ("add", "sub"):
        alpha = operation.options.get("alpha", 1)
        second = values[1] if alpha == 1 else f"{values[1]} * {text_of(alpha)}"
        return f"{values[0]} {'+' if name == 'add' else '-'} {second}"
    if name in ("rsub", "rdiv") and "alpha" not in operation.options:
        return f"{values[1]} {'-' if name == 'rsub' else '/'} {values[0]}"
    if name in ("addcmul", "addcdiv"):
        factor = text_of(operation.options.get("value", 1))
        return (
            f"{values[0]} + {factor} * {values[1]} {'*' if name == 'addcmul' else '/'} {values[2]}"
        )
    if name == "clamp":
        return _clamp(language, *(*values, "None")[:3])
    power = operation.values[1] if name == "pow" else None
    if isinstance(power, (int, float)) and power in (2, 3):
        return " * ".join([values[0]] * int(power))
    form = language.expressions.get(name, "")
    if not form or f"{{{len(values) - 1}}}" not in form or f"{{{len(values)}}}" in form:
        raise Untranslatable(f"the kernels have no form of {name} of {len(values)} arguments")
    return form.format(*values)


def _clamp(language: Language, value: str, low: str, high: str) -> str:
    clamped = value if low == "None" else language.where(f"{value} < {low}", low, value)
    return clamped if high == "None" else language.where(f"{value} > {high}", high, clamped)
