"""The settings of a run, typed. Commands fill these from YAML and the command line; Python can too.

Sections that name a part (model, head, regularizers, hooks) or change the network once it is built
(init, low_rank, rotate) are dictionaries of keyword arguments of that part's own constructor; the
fixed sections are the dataclasses below. In Python an object may stand where a section names a
part: ``Config(model=my_module, hooks={"mine": my_hook})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, TypeAlias

from hypersphere.ranges import Range
from hypersphere.registry import unknown_name
from hypersphere.training.own_parts import (
    OBJECT,
    as_section,
    plain_values,
    require_parts,
    used_parts,
)
from hypersphere.training.sections import (
    DataConfig,
    DissertationConfig,
    FabricConfig,
    FewShotConfig,
    GanConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    Section,
    Text,
    TrainConfig,
)

__all__ = ["Config", "DataConfig", "OptimizerConfig", "ScheduleConfig", "TrainConfig"]
__all__ += ["DissertationConfig", "FabricConfig", "FewShotConfig", "GanConfig", "RunConfig"]
__all__ += ["ThesisConfig"]

# A dictionary with "name" and options, or the object itself.
Part: TypeAlias = Any
# The section's name until version 0.1.
ThesisConfig = DissertationConfig


@dataclass
class Config(Section):
    """A whole run.

    Where a section names a part, Python may give the part itself: a module for the model or the
    head, an object for a regularizer or a hook, a `hypersphere.data.Split` for the data. Modules
    and regularizers are copied for each run, so that every run starts from the same state; hooks
    are used as they are.

    Args:
        task: what is trained: a task of `hypersphere tasks`.
        seed: seed of Python, NumPy and torch.
        data: the data set and how it is served. Each of the fixed sections may also be a
            dictionary of its values.
        model: name and options of the network (`hypersphere models`), or a module whose output is
            (B, features).
        head: name and options of the head (`hypersphere heads`), or a module that takes the
            features.
        init: options of other starting weights. Default: those of the network.
        low_rank: options of weights of low rank (E.23). Default: full rank.
        rotate: options of orthogonal over-parameterized training. Default: none.
        regularizers: options by name (`hypersphere regularizers`), or objects by any name.
        hooks: options by name (`hypersphere hooks`), or objects by any name.
        optimizer: the optimizer.
        schedule: the learning rate over time.
        train: length, intervals, gradient clipping.
        few_shot: episodes of task few_shot.
        gan: generator and losses of task gan.
        fabric: devices, processes, precision.
        run: folder and report.
        dissertation: the dissertation's number that this run reproduces.
    """

    task: Text = "classification"
    seed: Annotated[int, Range(ge=0, lt=2**32)] = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: Part = field(default_factory=lambda: {"name": "cnn9"})
    head: Part = field(default_factory=lambda: {"name": "softmax"})
    init: dict[str, Any] | None = None
    low_rank: dict[str, Any] | None = None
    rotate: dict[str, Any] | None = None
    regularizers: dict[str, Part] = field(default_factory=dict)
    hooks: dict[str, Part] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)
    gan: GanConfig = field(default_factory=GanConfig)
    fabric: FabricConfig = field(default_factory=FabricConfig)
    run: RunConfig = field(default_factory=RunConfig)
    dissertation: DissertationConfig = field(default_factory=DissertationConfig)

    def __post_init__(self) -> None:
        for section in ("regularizers", "hooks"):
            parts = getattr(self, section)
            if not isinstance(parts, Mapping):
                raise ValueError(f"{section} is a dictionary of parts by name; got {parts!r}")
        super().__post_init__()
        # "parts" of the dictionary that this config was read from.
        self._recorded: dict[str, Any] | None = None
        self.model, self.head = as_section("model", self.model), as_section("head", self.head)
        for section in ("model", "head"):
            value = getattr(self, section)
            if not isinstance(value, Mapping) or not (
                OBJECT in value or isinstance(value.get("name"), str)
            ):
                raise ValueError(f"{section} needs a name, the name of a {section}; got {value!r}")
        for section in ("regularizers", "hooks"):
            parts = getattr(self, section)
            parts = {name: as_section(f"{section}.{name}", part) for name, part in parts.items()}
            setattr(self, section, parts)
        if not isinstance(self.data, (DataConfig, Mapping)):
            self.data = DataConfig(name=self.data)
        for item in fields(self):
            kind, value = item.default_factory, getattr(self, item.name)
            if isinstance(kind, type) and is_dataclass(kind) and not isinstance(value, kind):
                setattr(self, item.name, _section(item.name, kind, value))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as run.json keeps them.

        Returns:
            The sections. An object is recorded as {"object": "module.Class"}; "parts" says where
            parts come from that are not of this package, if there are any.
        """
        values = {item.name: plain_values(getattr(self, item.name)) for item in fields(self)}
        own = used_parts(self) if self._recorded is None else self._recorded
        return {**values, "parts": own} if own else values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`. It imports nothing: parts that are not of this package have to
        be registered already, and objects have to be put in place of their records.

        Args:
            values: what `to_dict` gave, of this or an earlier version.

        Returns:
            The config.

        Raises:
            ValueError: if a section or a value is not known, or a part is not registered; the
                message says which plugin has it.

        >>> Config.from_dict(Config(seed=3).to_dict()) == Config(seed=3)
        True
        """
        values = dict(values)
        parts = values.pop("parts", {})
        require_parts(parts)
        if "thesis" in values:
            values["dissertation"] = values.pop("thesis")
        if "optimizer" in values:  # runs of earlier versions had raw rates
            values["optimizer"] = {"scale_rotations": False, **values["optimizer"]}
        sections = [item.name for item in fields(cls)]
        for key in values:
            if key not in sections:
                raise unknown_name("section", key, sections)
        for key, value in values.items():
            absent = value is None and key in ("init", "low_rank", "rotate")
            if key not in ("task", "seed") and not (absent or isinstance(value, Mapping)):
                raise ValueError(f"{key} is a section of options; got {value!r}")
        config = cls(**values)
        config._recorded = parts
        return config


def _section(key: str, kind: type, values: Any) -> Any:
    """A fixed section from its values by name."""
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{key} is a {kind.__name__} or a dictionary of its values; got {values!r}"
        )
    known = [item.name for item in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown_name(f"key of {key}", name, known)
    return kind(**values)
