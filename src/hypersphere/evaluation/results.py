"""What every evaluation gives back: a small dataclass that prints as a table and goes to JSON."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._reading import check_replaceable, sealed_text
from .writing import naming


def plain(value: Any) -> Any:
    """A value in types that JSON knows.

    Args:
        value: a number, text, tensor, dataclass, path or collection of them.

    Returns:
        The value; tensors become lists, NaN and infinities become None.
    """
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value


def format_table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows as aligned text, the first column left and the others right.

    Args:
        rows: the cells of each line.
        header: titles of the columns. Default: none.

    Returns:
        The lines of the table.

    >>> print(format_table([("error", "1.20 %"), ("samples", "10000")]))
    error    1.20 %
    samples   10000
    """
    lines = [[str(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    if not lines:
        return ""
    columns = max(map(len, lines))
    lines = [line + [""] * (columns - len(line)) for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(columns)]
    text = []
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(cells).rstrip())
        if header and number == 0:
            text.append("  ".join("-" * width for width in widths))
    return "\n".join(text)


def percent(value: float, digits: int = 2) -> str:
    """A share as a percentage.

    Args:
        value: in [0, 1], or NaN.
        digits: digits behind the point.

    Returns:
        The text; a dash for NaN.
    """
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def round_up(value: float, digits: int = 6) -> str:
    """A threshold as text, rounded upwards: what is read off accepts no more than was measured.

    Args:
        value: the threshold.
        digits: digits behind the point.

    Returns:
        The text.

    >>> round_up(0.12345678), round_up(0.5)
    ('0.123457', '0.500000')
    """
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.{digits}f}"
    return text if float(text) >= value else f"{value + 10.0**-digits / 2:.{digits}f}"


class Result:
    """Base of the result dataclasses; a subclass says its rows.

    >>> @dataclasses.dataclass
    ... class Coin(Result):
    ...     heads: float
    ...     def rows(self):
    ...         return [("heads", percent(self.heads))]
    >>> print(Coin(0.5))
    heads  50.00 %
    >>> Coin(0.5).to_dict()
    {'kind': 'Coin', 'heads': 0.5}
    """

    def rows(self) -> Iterable[Sequence[object]]:
        """The lines of the printed table.

        Returns:
            The cells of each line.
        """
        raise NotImplementedError

    def header(self) -> Sequence[str]:
        """Column titles; none for a plain list of name and value.

        Returns:
            One title per column, or nothing.
        """
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Everything the result holds, in types that JSON knows.

        Returns:
            field -> value; "kind" is the name of the class.
        """
        return {"kind": type(self).__name__, **plain(self)}

    def to_json(self, path: str | Path, **notes: Any) -> Path:
        """Write the result as JSON, whole or not at all.

        Args:
            path: the file; missing folders are made.
            notes: further values that are written beside the result.

        Returns:
            The path.
        """
        path = Path(path)
        check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with naming(path):
                temporary.write_text(sealed_text(self.to_dict() | notes, indent=1))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def __str__(self) -> str:
        return format_table(list(self.rows()), self.header())


def shown(value: float, digits: int) -> str:
    """A number for a table; a huge one by its exponent, not by hundreds of digits.

    Args:
        value: the number.
        digits: after the point.

    >>> shown(1.5, 3), shown(1e300, 3)
    ('1.500', '1.000e+300')
    """
    return f"{value:.{digits}{'f' if abs(value) < 1e9 else 'e'}}"


def mean_interval(samples: Tensor, confidence: float = 0.95) -> tuple[float, float]:
    """Mean and half width of its confidence interval, t_{n-1} s / sqrt(n) (Student).

    Args:
        samples: any shape.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean and half width; the latter is NaN for one sample.

    >>> mean, half = mean_interval(torch.tensor([1.0, 2.0, 3.0]))
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    n = samples.numel()
    values = samples.double()
    if n < 2:
        return float(values.mean()), math.nan
    half = student_quantile(n - 1, 0.5 + confidence / 2) * float(values.std()) / math.sqrt(n)
    return float(values.mean()), half


def student_quantile(degrees: int, probability: float) -> float:
    """Quantile of Student's t for `probability` > 1/2, good to 1e-6.

    With t = sqrt(v) tan(phi) the density is proportional to cos(phi)^(v-1), smooth on [0, pi/2].

    Args:
        degrees: degrees of freedom v.
        probability: in (1/2, 1).

    Returns:
        The quantile.

    >>> round(student_quantile(9, 0.975), 4)
    2.2622
    """
    phi = torch.linspace(0, math.pi / 2, 100_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(phi.cos().clamp(min=0) ** (degrees - 1), phi)
    target = float(mass[-1]) * (2 * probability - 1)
    i = int(torch.searchsorted(mass, torch.tensor(target, dtype=torch.float64)))
    low = float(mass[i - 1]) if i else 0.0
    share = (target - low) / (float(mass[i]) - low)
    return math.sqrt(degrees) * math.tan(float(phi[i]) + share * float(phi[1]))


def wilson_interval(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a proportion, meaningful even at 0 and 1.

    Args:
        successes: number of successes.
        trials: number of trials.
        z: quantile of the normal distribution. Default: that of 95 %.

    Returns:
        Lower and upper bound.

    >>> tuple(round(v, 3) for v in wilson_interval(10, 10))
    (0.722, 1.0)
    """
    p, zz = successes / trials, z * z
    center = (p + zz / (2 * trials)) / (1 + zz / trials)
    half = z / (1 + zz / trials) * math.sqrt(p * (1 - p) / trials + zz / (4 * trials * trials))
    return max(0.0, center - half), min(1.0, center + half)
