"""The formulas of g and h in C++, in front of the text of operator.cpp.

Each line of a formula is computed as seldom as it can be: once per call and filter if it depends
on k or the radius alone, once per pixel if it depends on the norm alone, else for every output.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from ..formulas import Language, Line, angular_lines, magnitude_lines
from ..plain import OperatorSettings

__all__ = ["operator_source"]

HERE = Path(__file__).parent

# Comparisons let NaN through, where fmin and fmax would drop it.
_EXPRESSIONS: dict[str, str] = {
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1.0f / {0}",
    "sqrt": "__builtin_sqrtf({0})",
    "rsqrt": "1.0f / __builtin_sqrtf({0})",
    "exp": "exp_of({0})",
    "log": "std::log({0})",
    "log1p": "std::log1p({0})",
    "sin": "std::sin({0})",
    "cos": "std::cos({0})",
    "asin": "asin_of({0})",
    "tanh": "tanh_of({0})",
    "sigmoid": "sigmoid_of({0})",
    "abs": "__builtin_fabsf({0})",
    "square": "{0} * {0}",
    "sign": "({0} > 0 ? 1.0f : {0} < 0 ? -1.0f : {0})",
    "relu": "({0} < 0 ? 0.0f : {0})",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "float": "static_cast<float>({0})",
    "clamp_min": "({0} < {1} ? {1} : {0})",
    "clamp_max": "({0} > {1} ? {1} : {0})",
    "where": "({0} ? {1} : {2})",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "logical_and": "{0} && {1}",
    "bitwise_and": "{0} && {1}",
    "logical_not": "{0} == 0",
    "isfinite": "__builtin_fabsf({0}) < INFINITY",
}


def _number(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if value >= 0 else f"({value!r}f)"


_CPP = Language(_EXPRESSIONS, _number)


def operator_source(op: OperatorSettings, radius_per_filter: bool, eps: float) -> str:
    """The text of a library with the two passes of an operator.

    Args:
        op: the operator.
        radius_per_filter: whether each filter has a radius of its own.
        eps: rounding error of the cosines.
    """
    g = angular_lines(op.angular, None, eps, _CPP)
    h = magnitude_lines(op.magnitude, *op.constants, _CPP)
    names = ("value", "slope", "of_k", "ratio", "of_norm", "of_radius")
    results = [
        Line(name, line.name, line.depends)
        for name, line in zip(names, g.results + h.results, strict=True)
    ]
    lines = [*g.lines, *h.lines, *results]
    of_filter = {"k", "radius"} if radius_per_filter else {"k"}
    of_pixel = {"n"} if radius_per_filter else {"n", "radius"}
    constant = [line for line in lines if not line.depends]
    per_filter = [line for line in lines if line.depends and line.depends <= of_filter]
    per_pixel = [line for line in lines if line.depends and line.depends <= of_pixel]
    early = {line.name for line in (*constant, *per_filter, *per_pixel)}
    rest = [line for line in lines if line.name not in early]
    needed = set(names) | {
        word for line in rest for word in re.findall(r"\b[a-z_]+\d*\b", line.text)
    }
    filters = [name for name in sorted(of_filter) if name in needed]
    filters += [line.name for line in per_filter if line.name in needed]
    pixels = [name for name in sorted(of_pixel - {"n"}) if name in needed]
    pixels += [line.name for line in per_pixel if line.name in needed]
    bound = op.bound
    constants = {
        "FILTER_VALUES": len(filters),
        "PIXEL_VALUES": len(pixels),
        "HAS_RADIUS": op.magnitude.has_radius,
        "IS_COSINE": op.angular.is_cosine,
        "IS_CONSTANT": op.magnitude.is_constant,
        "HAS_BOUND": bound is not None,
        # Rounding may lead a little beyond 1.
        "CLAMPS": bound is not None or not op.angular.is_cosine,
    }
    head = ['#include "arithmetic.h"', '#include "blocks.h"']
    head += [f"constexpr long {name} = {int(value)};" for name, value in constants.items()]
    head += [f"constexpr float ALPHA = {_number(float(op.alpha))};"]
    head += [f"constexpr float BOUND = {_number(float(bound or 0))};"]
    head += _function("of_filter", "float k, float radius", constant + per_filter, filters)
    head += _function("of_pixel", "float n, float radius", constant + per_pixel, pixels)
    text = re.sub(r"^//.*\n", "", (HERE / "operator.cpp").read_text(), flags=re.M)
    stored = [f"const float {name} = filter[{i} * channels + f];" for i, name in enumerate(filters)]
    text = text.replace("FILTER_LINES", " ".join(stored))
    stored = [f"const float {name} = pixel[{i} * BLOCK + p];" for i, name in enumerate(pixels)]
    text = text.replace("PIXEL_LINES", " ".join(stored))
    text = text.replace("FORMULAS", " ".join(_statements(constant + rest)))
    return "\n".join([*head, text])


def _function(name: str, arguments: str, lines: list[Line], stored: list[str]) -> list[str]:
    body = [f"out[{i} * step] = {value};" for i, value in enumerate(stored)]
    start = f"static inline void {name}({arguments}, float* out, long step) {{"
    return [start, *_statements(lines), *body, "}"]


def _statements(lines: list[Line]) -> list[str]:
    return [f"const auto {line.name} = {line.text};" for line in lines]
