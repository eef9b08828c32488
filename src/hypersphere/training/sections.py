"""The fixed sections of a config: every setting with its type, range, default and text."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

from hypersphere.ranges import Inside, NonEmpty, Processes, Range, Rate, Workers, check

__all__ = ["DataConfig", "DissertationConfig", "FabricConfig", "FewShotConfig", "GanConfig"]
__all__ += ["OptimizerConfig", "RunConfig", "ScheduleConfig", "Section", "Text", "TrainConfig"]
__all__ += ["hints_of"]

Batch: TypeAlias = Annotated[int, Range(ge=1, le=10_000_000)]
Count: TypeAlias = Annotated[int, Range(ge=1)]
NotNegative: TypeAlias = Annotated[float, Range(ge=0)]
Positive: TypeAlias = Annotated[float, Range(gt=0)]
Decay: TypeAlias = Annotated[float, Range(ge=0, le=1e6)]
Share: TypeAlias = Annotated[float, Range(gt=0, le=1)]
Text: TypeAlias = Annotated[str, NonEmpty()]


@functools.cache  # a class has always the same ones, and to read them takes longer than to check
def hints_of(cls: type) -> dict[str, Any]:
    """The type of each setting of a section, with its range.

    Args:
        cls: the class of the section.

    Returns:
        The types by name.
    """
    return get_type_hints(cls, include_extras=True)


class Section:
    """A section of the config; its values are checked when it is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        prefix = f"{self.section}." if self.section else ""
        cls: type = type(self)
        for name, hint in hints_of(cls).items():
            value = vars(self).get(name)
            record = isinstance(value, dict) and "object" in value  # of an object, see own_parts.py
            if name in vars(self) and not record:
                check(prefix + name, value, hint)


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
        holdout: part of the training samples that is left out of training and tested on in place
            of the test part, the same for each class; for choosing settings. Task few_shot, whose
            test classes are not trained, holds out this part of the classes.
        drop_last: leave out the last batch of an epoch if it is not full.
        prefetch: batches prepared ahead, for data decoded from files.
        workers: processes that decode files, for which one thread is not fast enough.
        imbalance: thin the training part: "single", "multiple" (D.1) or "mnist" (D.8).
        options: further arguments of the data set's reader.
    """

    section = "data"

    name: Text = "digits"
    root: Text | None = None
    batch_size: Batch = 128
    test_batch_size: Batch = 500
    normalize: Literal["unit", "symmetric", "mean", "channel"] = "unit"
    augment: Literal["none", "flip", "cifar", "cifar_full", "imagenet", "pointnet", "pointnet2"] = (
        "none"
    )
    share: Share = 1.0
    test_share: Share = 1.0
    holdout: Annotated[float, Range(ge=0, lt=1)] = 0.0
    drop_last: bool = True
    prefetch: Annotated[int, Range(ge=0)] = 0
    workers: Workers = 0
    imbalance: Literal["single", "multiple", "mnist"] | None = None
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
        weight_decay: weight decay of the neurons; never of k, radii and scales, nor of rotations
            unless decay_rotations is set.
        rotation_lr: learning rate of rotations. Default: lr.
        head_weight_decay: weight decay of the head. Default: weight_decay.
        decay_rotations: weight decay also on rotations that nothing else restrains: those of
            rotate.method "none" (UPT, 7.5.1) and "regularized"; "all" decays every rotation,
            as in the dissertation (F.3).
        iterations: steps of OGD's fixed-point iteration (Eq. 7.6).
        others: with ogd, the optimizer of everything but its matrices.
        scale_rotations: scale the rates of rotations so that lr means for them what it means for
            plain weights, whatever the map, block size and width; false is the raw rate.
    """

    section = "optimizer"

    name: Literal["sgd", "adam", "adamw", "ogd"] = "sgd"
    lr: Rate = 0.1
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9
    dampening: Annotated[float, Range(ge=0, le=1)] = 0.0
    nesterov: bool = False
    betas: Annotated[tuple[float, float], Range(ge=0, lt=1)] = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: Decay = 0.0
    rotation_lr: Rate | None = None
    head_weight_decay: Decay | None = None
    decay_rotations: bool | Literal["all"] = False
    iterations: Count = 2
    others: Literal["sgd", "adam", "adamw"] = "sgd"
    scale_rotations: bool = True


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
    end: Annotated[float, Range(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "steps" and not self.at:
            raise ValueError("schedule.name is steps: say at which updates with schedule.at")


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
        compile: compile network and loss with torch.compile: slow first steps, then fewer and
            larger kernels. The losses are the same up to rounding.
        quiet: show no progress.
    """

    section = "train"

    steps: Count = 1000
    epochs: Annotated[float, Range(gt=0, le=1e9)] | None = None
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
    threads: Processes | None = None
    compile: bool = False
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

    methods: list[Literal["baseline", "baseline++", "nearest_mean"]] = field(
        default_factory=lambda: ["baseline", "baseline++"]
    )
    way: Annotated[int, Range(ge=2)] = 5
    shot: Count = 5
    queries: Count = 16
    episodes: Count = 600
    epochs: Count = 100
    lr: Rate = 1e-2
    batch_size: Batch = 4
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
        accelerator: "auto", "cpu", "cuda" (or "gpu") or "mps".
        devices: processes per machine; "auto" takes all GPUs, one process on CPU, or what torchrun
            started; -1 takes all GPUs.
        num_nodes: machines.
        strategy: "auto", "ddp" (whole networks) or "fsdp" (every weight spread over the processes);
            class weights alone are spread by head.sharded.
        precision: "32-true", "bf16-mixed" or "16-mixed"; "32", "bf16" and "16" are short for them.
        silence: seconds after which another process counts as gone if it shows no sign of life.
    """

    section = "fabric"

    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"
    devices: Annotated[int, Range(ge=-1, le=1024)] | Text = "auto"
    num_nodes: Processes = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "32", "bf16", "16"] = "32-true"
    silence: Positive = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices in (0, "0"):
            raise ValueError(
                f"fabric.devices must be auto, a number of processes >= 1, or -1 for all GPUs; got "
                f"{self.devices!r}"
            )


@dataclass
class RunConfig(Section):
    """The folder of the run.

    Args:
        folder: exactly this folder. Default: runs/NAME, or runs/NAME-2, ... if that is taken.
        name: NAME in runs/NAME. Default: the name of the config file.
        report: write the HTML page at the end.
        baseline: where the data have pairs of unseen classes, train the plain network with a
            softmax head too, in FOLDER/baseline, and print both beside the bare inputs.
    """

    section = "run"

    folder: Text | None = None
    name: Annotated[str, Inside()] | None = None
    report: bool = True
    baseline: bool = False


@dataclass
class DissertationConfig(Section):
    """The dissertation's number that a recipe reproduces; shown by `hypersphere recipes`.

    Args:
        source: table or figure.
        row: entry of the table or figure.
        metric: "accuracy", "error", ..., in percent.
        value: the number printed there.
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
