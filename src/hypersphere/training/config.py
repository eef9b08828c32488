"""The settings of a run, typed. Commands fill these from YAML and the command line; Python can too.

Sections that name a thing (model, head, regularizers, hooks) or change the network once it is
built (init, low_rank, rotate) are dictionaries of keyword arguments of that thing's own
constructor; the fixed sections are the dataclasses below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

__all__ = ["Config", "DataConfig", "OptimizerConfig", "ScheduleConfig", "TrainConfig"]
__all__ += ["FabricConfig", "FewShotConfig", "GanConfig", "RunConfig", "ThesisConfig"]


@dataclass
class DataConfig:
    """Where the samples come from and how they are served.

    Args:
        name: a data set of `hypersphere.data.list_datasets()`
        root: folder that holds the data sets (default: HYPERSPHERE_DATA, then ~/.cache/hypersphere)
        batch_size: samples one update sees, over all processes together
        test_batch_size: samples at once when testing
        normalize: unit, symmetric, mean or channel
        augment: none, flip, cifar, cifar_full, imagenet, pointnet or pointnet2
        share: part of the training samples that is used, the same for each class
        test_share: part of the test samples that is used
        drop_last: leave out the last batch of an epoch if it is not full
        prefetch: batches prepared ahead, for data decoded from files
        imbalance: single, multiple or mnist: thin the training part (D.1, D.8)
        options: further arguments of the data set's reader
    """

    name: str = "digits"
    root: str | None = None
    batch_size: int = 128
    test_batch_size: int = 500
    normalize: Literal["unit", "symmetric", "mean", "channel"] = "unit"
    augment: Literal["none", "flip", "cifar", "cifar_full", "imagenet", "pointnet", "pointnet2"] = (
        "none"
    )
    share: float = 1.0
    test_share: float = 1.0
    drop_last: bool = True
    prefetch: int = 0
    imbalance: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerConfig:
    """How the parameters move.

    Args:
        name: sgd, adam, adamw, or ogd (for rotate.method ogd)
        lr: learning rate at the start
        momentum: of SGD and OGD
        dampening: of SGD
        nesterov: of SGD and OGD
        betas: of Adam and AdamW
        eps: of Adam and AdamW
        weight_decay: on the neurons; not on rotations, never on k, radii and scales
        rotation_lr: learning rate of rotations, if another
        head_weight_decay: weight decay of the head, if another
        decay_rotations: weight decay on rotations that nothing else restrains, too: those of
            rotate.method none (UPT, 7.5.1) and regularized
        iterations: of OGD's fixed point (Eq. 7.6)
        others: with ogd, what moves everything but its matrices: sgd, adam or adamw
    """

    name: Literal["sgd", "adam", "adamw", "ogd"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    rotation_lr: float | None = None
    head_weight_decay: float | None = None
    decay_rotations: bool = False
    iterations: int = 2
    others: Literal["sgd", "adam", "adamw"] = "sgd"


@dataclass
class ScheduleConfig:
    """The learning rate over time.

    Args:
        name: constant, steps, every, cosine or plateau
        at: iterations at which `steps` multiplies by `factor`
        factor: of steps, every and plateau
        period: iterations between two decays of `every`
        patience: tests without improvement before `plateau` acts
        threshold: what counts as an improvement of the test loss
        warmup: iterations of linear warm-up, with any schedule
        end: last factor of `cosine`
    """

    name: Literal["constant", "steps", "every", "cosine", "plateau"] = "constant"
    at: list[int] = field(default_factory=list)
    factor: float = 0.1
    period: int = 200_000
    patience: int = 5
    threshold: float = 1e-3
    warmup: int = 0
    end: float = 0.0


@dataclass
class TrainConfig:
    """How long, how often.

    Args:
        steps: updates (iterations)
        epochs: instead of steps, passes over the training part
        accumulate: parts a batch is split into to save memory
        clip: largest gradient norm
        label_smoothing: of the cross entropy
        log_every: updates between two training lines of metrics.jsonl
        test_every: updates between two tests (default: ten tests a run)
        checkpoint_every: updates between two checkpoints (default: by time, at most 1 % of the run)
        checkpoint_seconds: shortest time between two checkpoints made by time
        keep: newest checkpoints that stay on disk
        init_from: weights to start from: a run folder (its last), a checkpoint or .safetensors file
        deterministic: refuse operations whose result differs between two runs (GPU)
        threads: CPU threads of torch (default: torch's own choice)
        quiet: no progress
    """

    steps: int = 1000
    epochs: float | None = None
    accumulate: int = 1
    clip: float | None = None
    label_smoothing: float = 0.0
    log_every: int = 50
    test_every: int | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float = 30.0
    keep: int = 2
    init_from: str | None = None
    deterministic: bool = False
    threads: int | None = None
    quiet: bool = False


@dataclass
class FewShotConfig:
    """Episodes of new classes after pretraining (F.3); for task few_shot.

    Args:
        methods: baseline, baseline++ and nearest_mean, each evaluated on the same episodes
        way: classes in an episode
        shot: samples of each class to learn from
        queries: samples of each class to test on
        episodes: their number at the end; tests on the way take 100 with nearest_mean
        epochs: of fine-tuning the new classifier in each episode
        lr: of that fine-tuning
        batch_size: of that fine-tuning
        scale: c of baseline++
    """

    methods: list[str] = field(default_factory=lambda: ["baseline", "baseline++"])
    way: int = 5
    shot: int = 5
    queries: int = 16
    episodes: int = 600
    epochs: int = 100
    lr: float = 1e-2
    batch_size: int = 4
    scale: float = 2.0


@dataclass
class GanConfig:
    """The generator, and how the two players take turns (D.7); for task gan, where `model` is the
    discriminator.

    Args:
        generator: name and options of the generator
        generator_every: the generator moves in every n-th iteration
        loss: standard (Eq. D.12), or wasserstein: the mean scores themselves
        gradient_penalty: weight of the penalty on gradients of the discriminator that are not of
            length 1 (GAN-GP, WGAN-GP; 10 in its paper)
        samples: pictures generated for each test
        scorer: folder of a classifier's run, for inception-style scores and Frechet distances
    """

    generator: dict[str, Any] = field(default_factory=lambda: {"name": "sngan_generator"})
    generator_every: int = 1
    loss: Literal["standard", "wasserstein"] = "standard"
    gradient_penalty: float = 0.0
    samples: int = 1000
    scorer: str | None = None


@dataclass
class FabricConfig:
    """Devices, processes, machines and precision, as Lightning Fabric takes them.

    Args:
        accelerator: auto, cpu, cuda or mps
        devices: processes per machine; auto takes all GPUs, one process on CPU, or what
            torchrun started
        num_nodes: machines
        strategy: auto, ddp (whole networks) or fsdp (every weight spread over the processes);
            class weights alone are spread by head.sharded
        precision: 32-true, bf16-mixed, 16-mixed, bf16-true or 64-true
    """

    accelerator: str = "auto"
    devices: int | str = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"


@dataclass
class RunConfig:
    """The folder of the run.

    Args:
        folder: exactly this one; otherwise runs/NAME, or runs/NAME-2, ... if that is taken
        name: NAME (default: the name of the config file)
        report: write the HTML page at the end
    """

    folder: str | None = None
    name: str | None = None
    report: bool = True


@dataclass
class ThesisConfig:
    """The dissertation's number that a recipe reproduces; shown by `hypersphere recipes`.

    Args:
        source: table or figure
        row: which entry of it
        metric: accuracy, error, ... in percent
        value: the number
        also: further numbers of the same run by metric, e.g. {top5_error: 21.13}
        data: the data set of the text, where the config uses another
        note: what differs from the text
    """

    source: str = ""
    row: str = ""
    metric: str = ""
    value: float | None = None
    also: dict[str, float] = field(default_factory=dict)
    data: str = ""
    note: str = ""


@dataclass
class Config:
    """A whole run."""

    task: Literal["classification", "gan", "graph", "few_shot", "reconstruction"] = "classification"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"name": "cnn9"})
    head: dict[str, Any] = field(default_factory=lambda: {"name": "softmax"})
    init: dict[str, Any] | None = None
    low_rank: dict[str, Any] | None = None
    rotate: dict[str, Any] | None = None
    regularizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    hooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)
    gan: GanConfig = field(default_factory=GanConfig)
    fabric: FabricConfig = field(default_factory=FabricConfig)
    run: RunConfig = field(default_factory=RunConfig)
    thesis: ThesisConfig = field(default_factory=ThesisConfig)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as run.json keeps them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`.

        >>> Config.from_dict(Config(seed=3).to_dict()) == Config(seed=3)
        True
        """
        sections: dict[str, Any] = {f.name: f.default_factory for f in fields(cls)}
        built = {}
        for key, value in values.items():
            section = sections[key]
            typed = isinstance(section, type) and is_dataclass(section)
            built[key] = section(**value) if typed else value
        return cls(**built)
