"""What a search for layers gives: the weights found, what was left out, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from torch import Tensor, nn

from .filter_matrix import FilterMatrix

__all__ = ["Findings", "LeftOut", "Site", "State"]

# Whether a weight can be replaced: "plain" is a parameter of this module alone; "computed" is made
# from others (a property, a parametrization, weight_norm); "packed" is read by its module past any
# parametrization (nn.LSTM); the others say what they are.
State: TypeAlias = Literal["plain", "computed", "packed", "tied", "quantized", "sharded"]


@dataclass(frozen=True, eq=False)
class Site:
    """A weight that holds neurons: `module.<parameter>`.

    Args:
        name: of the module; of the wrapper, where a module stands inside one (LoRA).
        module: that has the weight.
        parameter: name of the weight in the module.
        layout: how the weight holds its neurons.
        kind: "linear", "convolution", "transposed convolution", "bilinear", "attention",
            "embedding", "recurrent" or "Conv1D" (Hugging Face: weight (in, out)).
        role: "hidden" or "output".
        state: whether the weight can be replaced; see `State`.
        note: why it cannot, and whatever else is worth printing.
        copy: whether it is a copy that PEFT trains in place of the original (modules_to_save).
        source: the parameter itself, or the object that makes the weight: tied weights share it.
        reader: gives the effective weight, if that is not simply `module.<parameter>`.
    """

    name: str
    module: nn.Module
    parameter: str
    layout: FilterMatrix
    kind: str
    role: str = "hidden"
    state: State = "plain"
    note: str = ""
    copy: bool = False
    source: object = field(default=None, repr=False)
    reader: Callable[[], Tensor] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """The layer's name, with the parameter where it is not simply `weight`."""
        if self.parameter == "weight":
            return self.name or type(self.module).__name__
        return f"{self.name}.{self.parameter}".lstrip(".")

    def read(self) -> Tensor:
        """The effective weight, through which gradients reach the parameters below.

        Returns:
            A tensor of the layout's shape; of a sharded weight, all of it.
        """
        weight = getattr(self.module, self.parameter) if self.reader is None else self.reader()
        # A DTensor (FSDP2): every rank takes part in gathering it, and autograd scatters back.
        return weight.full_tensor() if hasattr(weight, "full_tensor") else weight

    def with_role(self, role: str) -> Site:
        """The same site with another role.

        Args:
            role: "hidden" or "output".

        Returns:
            The site.
        """
        return replace(self, role=role)


@dataclass(frozen=True)
class LeftOut:
    """Something that has a weight and is not among the sites.

    Args:
        name: of the module.
        what: its class, and the shape of the weight if it has one.
        reason: why it was left out.
    """

    name: str
    what: str
    reason: str


@dataclass
class Findings:
    """What was found in a model, what was left out and why; `str` prints a table.

    Args:
        sites: the weights found, in the order of the model.
        left_out: the others.
    """

    sites: list[Site]
    left_out: list[LeftOut]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __str__(self) -> str:
        rows = [("layer", "what", "role", "remarks")]
        for site in self.sites:
            size = f"{site.layout.sets * site.layout.neurons} x {site.layout.dim}"
            rows.append((site.label, f"{site.kind} {size}", site.role, site.note))
        rows += [(x.name or "(the model)", x.what, "left out", x.reason) for x in self.left_out]
        return aligned_columns(rows)


def aligned_columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, each as wide as its widest entry.

    Args:
        rows: of equal length, the first one the heading.

    Returns:
        The lines.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    padded = [
        [*(text.ljust(width) for text, width in zip(row[:-1], widths, strict=True)), row[-1]]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in padded)
