"""The settings of a run, typed. Commands fill these from YAML and the command line; Python can too.

Sections that name a part (model, head, regularizers, hooks) or change the network once it is built
(init, low_rank, rotate) are dictionaries of keyword arguments of that part's own constructor; the
fixed sections are the dataclasses below. In Python an object may stand where a section names a
part: ``Config(model=my_module, hooks={"mine": my_hook})``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

from hypersphere.ranges import NonEmpty, Range, check
from hypersphere.registry import KINDS, entries, origin, unknown_name

__all__ = ["Config", "DataConfig", "OptimizerConfig", "ScheduleConfig", "TrainConfig"]
__all__ += ["DissertationConfig", "FabricConfig", "FewShotConfig", "GanConfig", "RunConfig"]
__all__ += ["OBJECT", "ThesisConfig", "object_of", "require_parts", "used_parts", "without_places"]

Count: TypeAlias = Annotated[int, Range(ge=1)]
NotNegative: TypeAlias = Annotated[float, Range(ge=0)]
Positive: TypeAlias = Annotated[float, Range(gt=0)]
Share: TypeAlias = Annotated[float, Range(gt=0, le=1)]
Text: TypeAlias = Annotated[str, NonEmpty()]
# A dictionary with "name" and options, or the object itself.
Part: TypeAlias = Any

# The key under which a section holds an object that was given in Python.
OBJECT = "object"


class Section:
    """A section of the config; its values are checked when it is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        prefix = f"{self.section}." if self.section else ""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            if name in vars(self):
                check(prefix + name, getattr(self, name), hint)


@dataclass
class DataConfig(Section):
    """Where the samples come from and how they are served.

    Args:
        name: a data set of `hypersphere data`; in Python also a `hypersphere.data.Split`.
        root: folder that holds the data sets. Default: the environment variable HYPERSPHERE_DATA,
            then ~/.cache/hypersphere.
        batch_size: samples of one update, over all processes together.
        test_batch_size: samples per batch when testing.
        normalize: how pixels become inputs: "unit" leaves 0..1, "symmetric" gives -1..1, "mean"
            subtracts the mean picture, "channel" standardizes each channel.
        augment: random changes of the training samples.
        share: part of the training samples that is used, the same for each class.
        test_share: part of the test samples that is used, the same for each class.
        drop_last: leave out the last batch of an epoch if it is not full.
        prefetch: batches prepared ahead, for data decoded from files.
        imbalance: thin the training part: "single", "multiple" (D.1) or "mnist" (D.8).
        options: further arguments of the data set's reader.
    """

    section = "data"

    name: Text = "digits"
    root: Text | None = None
    batch_size: Count = 128
    test_batch_size: Count = 500
    normalize: Literal["unit", "symmetric", "mean", "channel"] = "unit"
    augment: Literal["none", "flip", "cifar", "cifar_full", "imagenet", "pointnet", "pointnet2"] = (
        "none"
    )
    share: Share = 1.0
    test_share: Share = 1.0
    drop_last: bool = True
    prefetch: Annotated[int, Range(ge=0)] = 0
    imbalance: Text | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerConfig(Section):
    """How the parameters move.

    Args:
        name: the optimizer; "ogd" goes with rotate.method "ogd".
        lr: learning rate at the start.
        momentum: momentum of SGD and OGD.
        dampening: dampening of the momentum of SGD.
        nesterov: Nesterov momentum, of SGD and OGD.
        betas: decay of the two running means of Adam and AdamW.
        eps: term added to the denominator of Adam and AdamW.
        weight_decay: on the neurons; not on rotations, and never on k, radii and scales.
        rotation_lr: learning rate of rotations. Default: lr.
        head_weight_decay: weight decay of the head. Default: weight_decay.
        decay_rotations: weight decay also on rotations that nothing else restrains: those of
            rotate.method "none" (UPT, 7.5.1) and "regularized".
        iterations: steps of OGD's fixed-point iteration (Eq. 7.6).
        others: with ogd, the optimizer of everything but its matrices.
    """

    section = "optimizer"

    name: Literal["sgd", "adam", "adamw", "ogd"] = "sgd"
    lr: NotNegative = 0.1
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9
    dampening: Annotated[float, Range(ge=0, le=1)] = 0.0
    nesterov: bool = False
    betas: Annotated[tuple[float, float], Range(ge=0, lt=1)] = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    rotation_lr: NotNegative | None = None
    head_weight_decay: NotNegative | None = None
    decay_rotations: bool = False
    iterations: Count = 2
    others: Literal["sgd", "adam", "adamw"] = "sgd"


@dataclass
class ScheduleConfig(Section):
    """The learning rate over time.

    Args:
        name: the schedule.
        at: updates at which "steps" multiplies the rate by factor.
        factor: multiplier of "steps", "every" and "plateau".
        period: updates between two decays of "every".
        patience: tests without improvement before "plateau" acts.
        threshold: smallest decrease of the test loss that counts as an improvement.
        warmup: updates of linear warm-up, with any schedule.
        end: last factor of "cosine".
    """

    section = "schedule"

    name: Literal["constant", "steps", "every", "cosine", "plateau"] = "constant"
    at: Annotated[list[int], Range(ge=1)] = field(default_factory=list)
    factor: NotNegative = 0.1
    period: Count = 200_000
    patience: Annotated[int, Range(ge=0)] = 5
    threshold: NotNegative = 1e-3
    warmup: Annotated[int, Range(ge=0)] = 0
    end: NotNegative = 0.0


@dataclass
class TrainConfig(Section):
    """How long, how often.

    Args:
        steps: updates (iterations).
        epochs: passes over the training part, instead of steps.
        accumulate: parts that a batch is split into to save memory.
        clip: largest norm of the gradient. Default: no clipping.
        label_smoothing: label smoothing of the cross entropy.
        log_every: updates between two training lines of metrics.jsonl.
        test_every: updates between two tests. Default: ten tests per run.
        checkpoint_every: updates between two checkpoints. Default: by time, at most 1 % of the run.
        checkpoint_seconds: shortest time between two checkpoints made by time, in seconds.
        keep: newest checkpoints that stay on disk.
        init_from: weights to start from: a run folder (its last weights), a checkpoint folder or a
            .safetensors file.
        deterministic: refuse operations whose result differs between two runs (GPU).
        threads: CPU threads of torch. Default: torch's own choice.
        quiet: show no progress.
    """

    section = "train"

    steps: Count = 1000
    epochs: Positive | None = None
    accumulate: Count = 1
    clip: Positive | None = None
    label_smoothing: Annotated[float, Range(ge=0, lt=1)] = 0.0
    log_every: Count = 50
    test_every: Count | None = None
    checkpoint_every: Count | None = None
    checkpoint_seconds: NotNegative = 30.0
    keep: Count = 2
    init_from: Text | None = None
    deterministic: bool = False
    threads: Count | None = None
    quiet: bool = False


@dataclass
class FewShotConfig(Section):
    """Episodes of new classes after pretraining (F.3); for task few_shot.

    Args:
        methods: "baseline", "baseline++" and "nearest_mean", each evaluated on the same episodes.
        way: classes of an episode.
        shot: samples of each class to learn from.
        queries: samples of each class to test on.
        episodes: number of episodes at the end; tests on the way take 100 with nearest_mean.
        epochs: passes over its samples when the new classifier of an episode is fine-tuned.
        lr: learning rate of that fine-tuning.
        batch_size: batch size of that fine-tuning.
        scale: scale of the cosine scores of "baseline++".
    """

    section = "few_shot"

    methods: list[str] = field(default_factory=lambda: ["baseline", "baseline++"])
    way: Annotated[int, Range(ge=2)] = 5
    shot: Count = 5
    queries: Count = 16
    episodes: Count = 600
    epochs: Count = 100
    lr: NotNegative = 1e-2
    batch_size: Count = 4
    scale: Positive = 2.0


@dataclass
class GanConfig(Section):
    """The generator, and how the two networks take turns (D.7); for task gan, where `model` is the
    discriminator.

    Args:
        generator: name and options of the generator.
        generator_every: the generator moves in every n-th iteration.
        loss: "standard" (Eq. D.12), or "wasserstein": the mean scores themselves.
        gradient_penalty: weight of the penalty on gradients of the discriminator whose length is
            not 1 (GAN-GP, WGAN-GP; 10 in its paper).
        samples: pictures generated for each test.
        scorer: folder of a classifier's run, for inception-style scores and Frechet distances.
    """

    section = "gan"

    generator: dict[str, Any] = field(default_factory=lambda: {"name": "sngan_generator"})
    generator_every: Count = 1
    loss: Literal["standard", "wasserstein"] = "standard"
    gradient_penalty: NotNegative = 0.0
    samples: Count = 1000
    scorer: Text | None = None


@dataclass
class FabricConfig(Section):
    """Devices, processes, machines and precision, as Lightning Fabric takes them.

    Args:
        accelerator: "auto", "cpu", "cuda" or "mps".
        devices: processes per machine; "auto" takes all GPUs, one process on CPU, or what torchrun
            started.
        num_nodes: machines.
        strategy: "auto", "ddp" (whole networks) or "fsdp" (every weight spread over the processes);
            class weights alone are spread by head.sharded.
        precision: "32-true", "bf16-mixed", "16-mixed", "bf16-true" or "64-true".
    """

    section = "fabric"

    accelerator: Text = "auto"
    devices: int | Text = "auto"
    num_nodes: Count = 1
    strategy: Text = "auto"
    precision: Text = "32-true"


@dataclass
class RunConfig(Section):
    """The folder of the run.

    Args:
        folder: exactly this folder. Default: runs/NAME, or runs/NAME-2, ... if that is taken.
        name: NAME in runs/NAME. Default: the name of the config file.
        report: write the HTML page at the end.
    """

    section = "run"

    folder: Text | None = None
    name: Text | None = None
    report: bool = True


@dataclass
class DissertationConfig(Section):
    """The dissertation's number that a recipe reproduces; shown by `hypersphere recipes`.

    Args:
        source: table or figure.
        row: entry of the table or figure.
        metric: "accuracy", "error", ..., in percent.
        value: the number.
        also: further numbers of the same run by metric, e.g. {top5_error: 21.13}.
        data: the data set of the dissertation, where the config uses another.
        note: what differs from the dissertation.
    """

    section = "dissertation"

    source: str = ""
    row: str = ""
    metric: str = ""
    value: float | None = None
    also: dict[str, float] = field(default_factory=dict)
    data: str = ""
    note: str = ""


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
        data: the data set and how it is served.
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
        super().__post_init__()
        # "parts" of the dictionary that this config was read from.
        self._recorded: dict[str, Any] | None = None
        self.model, self.head = _as_section(self.model), _as_section(self.head)
        self.regularizers = {name: _as_section(part) for name, part in self.regularizers.items()}
        self.hooks = {name: _as_section(part) for name, part in self.hooks.items()}
        if not isinstance(self.data, DataConfig):
            self.data = DataConfig(name=self.data)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as run.json keeps them.

        Returns:
            The sections. An object is recorded as {"object": "module.Class"}; "parts" says where
            parts come from that are not of this package, if there are any.
        """
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
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
        sections: dict[str, Any] = {f.name: f.default_factory for f in fields(cls)}
        built = {}
        for key, value in values.items():
            if key not in sections:
                raise unknown_name("section", key, sections)
            section = sections[key]
            if isinstance(section, type) and is_dataclass(section):
                known = [item.name for item in fields(section)]
                for name in value:
                    if name not in known:
                        raise unknown_name(f"key of {key}", name, known)
                value = section(**value)
            built[key] = value
        config = cls(**built)
        config._recorded = parts
        return config


def without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two runs have to share in order to be the same run.

    Args:
        values: what `Config.to_dict` gave.

    Returns:
        The same without modules and files of parts, which may lie elsewhere; their SHA-256 stays.
    """
    parts = {k: part.get("sha256") for k, part in (values.get("parts") or {}).items()}
    return {**values, "parts": parts} if parts else dict(values)


def object_of(section: Any) -> Any:
    """The object that a section holds instead of a name.

    Args:
        section: a section such as ``config.model``.

    Returns:
        The object; None if the section names a registered part.

    Raises:
        ValueError: if only the record of an object is left, as in a config read from a run folder.
    """
    if not isinstance(section, Mapping) or OBJECT not in section:
        return None
    found = section[OBJECT]
    if isinstance(found, str):
        raise ValueError(
            f"this run was made with an object of {found}, which a run folder cannot bring back: "
            f"give it again, in the Config to resume, or as load_net(folder, net=...) to evaluate"
        )
    return found


def used_parts(config: Config) -> dict[str, dict[str, Any]]:
    """The parts of a config that do not come from this package, and where they come from.

    Args:
        config: a config.

    Returns:
        Module, file and SHA-256 by "kind.name" or, for an object, "kind object.class".
    """
    found: dict[str, dict[str, Any]] = {}
    sections: list[tuple[str, Any]] = [("model", config.model), ("head", config.head)]
    sections += [("regularizer", part) for part in config.regularizers.values()]
    sections += [("hook", part) for part in config.hooks.values()]
    sections += [("data", {"name": config.data.name})]
    for kind, section in sections:
        for option, value in section.items():
            if not _is_plain(value):
                named = NAMED_BY_OPTION.get(option, kind)
                found[f"{named} {OBJECT}.{_class_name(value)}"] = dict(origin(value))
    for kind, name in _names(config):
        for part in entries(kind):
            if part.name == name and part.own:
                found[f"{kind}.{name}"] = dict(origin(part.target))
    return found


# What an option of this name may name.
NAMED_BY_OPTION = {
    "angular": "angular",
    "magnitude": "magnitude",
    "operator": "magnitude",
    "margin": "margin",
}


def _names(config: Config) -> list[tuple[str, str]]:
    """(kind, name) of every part that the config names, each once."""
    found: dict[tuple[str, str], None] = {("task", config.task): None}
    if isinstance(config.data.name, str):
        found["data", config.data.name] = None
    sections = [("model", config.model), ("head", config.head), ("model", config.gan.generator)]
    for kind, parts in (("regularizer", config.regularizers), ("hook", config.hooks)):
        sections += [(kind, {**part, "name": name}) for name, part in parts.items()]
    for kind, section in sections:
        if isinstance(section.get("name"), str) and OBJECT not in section:
            found[kind, section["name"]] = None
        for option, named in NAMED_BY_OPTION.items():
            value = section.get(option)
            value = value.get("name") if isinstance(value, Mapping) else value
            if isinstance(value, str):
                found[named, value] = None
    return list(found)


def require_parts(records: Any) -> None:
    """Refuse a config whose parts are not registered, and say which plugin has them.

    Args:
        records: "parts" of `Config.to_dict`.

    Raises:
        ValueError: if a part is not registered.
    """
    for key, record in (records or {}).items():
        kind, _, name = key.partition(".")
        if kind not in KINDS:  # an object, which is asked for when it is needed
            continue
        known = {part.name: part for part in entries(kind)}
        where = record.get("file") or record.get("module")
        if name not in known:
            raise ValueError(
                f"this run uses the {KINDS[kind]} {name!r} of the plugin {where}, which is not "
                f"loaded: give it with --plugin {where}, or import it first in Python"
            )
        now = origin(known[name].target)
        if record.get("sha256") and now["sha256"] != record["sha256"]:
            warnings.warn(
                f"{now['file']}, which has the {KINDS[kind]} {name!r}, has changed since this run "
                f"was made",
                stacklevel=3,
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, Mapping))


def _as_section(part: Any) -> Any:
    return part if _is_plain(part) else {OBJECT: part}


def _class_name(value: Any) -> str:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    """A copy in plain values."""
    if is_dataclass(value) and isinstance(value, Section):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        given = value.get(OBJECT)
        if not _is_plain(given):
            return {OBJECT: _class_name(given)}
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value if _is_plain(value) else {OBJECT: _class_name(value)}
