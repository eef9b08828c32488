"""GAN training with a regularized discriminator (D.7).

Two players take turns: the discriminator minimizes -log D(x) - log(1 - D(G(z))) (Eq. D.12), the
generator -log D(G(z)) (the alternate cost). Hooks and regularizers act on the discriminator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hypersphere.registry import register
from hypersphere.training.build import Loaders, change_net, make_loaders, make_sized_model
from hypersphere.training.config import Config, GanConfig
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.load import load_net
from hypersphere.training.runtime import Objective, Player
from hypersphere.training.tasks.gan_penalties import gradient_penalty

__all__ = ["DiscriminatorLoss", "Gan", "GeneratorLoss"]


class DiscriminatorLoss(nn.Module):
    """x (B, ...) -> (-log D(x) - log(1 - D(G(z))), scores); D(x) = sigmoid of the score.

    With `wasserstein` the scores themselves, -f(x) + f(G(z)). `penalty` times the gradient penalty
    is added to either.
    """

    def __init__(
        self,
        discriminator: nn.Module,
        generator: nn.Module,
        wasserstein: bool = False,
        penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.discriminator = discriminator
        self._generator = [generator]  # in a list: not a part of this module, so not its to update
        self.wasserstein, self.penalty = wasserstein, penalty

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        generator = self._generator[0]
        with torch.no_grad():
            fake = generator(torch.randn(len(x), *generator.input_shape, device=x.device))  # type: ignore[misc]
        # One pass over both: what depends on the batch sees real and generated pictures alike.
        scores = self.discriminator(torch.cat([x, fake])).flatten()
        real, generated = scores[: len(x)], scores[len(x) :]
        if self.wasserstein:
            loss = generated.mean() - real.mean()
        else:
            loss = softplus(-real).mean() + softplus(generated).mean()
        if self.penalty:
            loss = loss + self.penalty * gradient_penalty(self.discriminator, x, fake)
        return loss, scores


class GeneratorLoss(nn.Module):
    """x, for its batch size only -> (-log D(G(z)), scores); with `wasserstein` -f(G(z))."""

    def __init__(
        self, generator: nn.Module, discriminator: nn.Module, wasserstein: bool = False
    ) -> None:
        super().__init__()
        self.generator = generator
        self._discriminator = [discriminator]
        self.wasserstein = wasserstein

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.randn(len(x), *self.generator.input_shape, device=x.device)  # type: ignore[misc]
        scores = self._discriminator[0](self.generator(z)).flatten()
        return -scores.mean() if self.wasserstein else softplus(-scores).mean(), scores


@torch.no_grad()
def _shape_of_samples(generator: Any) -> tuple[int, ...]:
    """(C, H, W) of what a generator makes; its statistics stay as they are."""
    training = generator.training
    samples = generator.eval()(torch.zeros(1, *generator.input_shape))
    generator.train(training)
    return tuple(samples.shape[1:])


@register("task", "gan", source="D.7")
class Gan:
    """A generator against a discriminator (`model`), on which hooks and regularizers act."""

    sections = frozenset({"data", "gan"})

    def __init__(
        self, settings: GanConfig, nets: nn.ModuleDict, loaders: Loaders, seed: int, fabric: Any
    ) -> None:
        self.settings, self.model, self.loaders = settings, nets, loaders
        self.hooked = nets["discriminator"]
        self.players: list[Player] = []
        self.seed, self.device, self.fabric = seed, fabric.device, fabric
        self.scorer: Any = None  # a trained classifier
        self.best = ("order", 1)  # without a scorer, the last is the best
        if settings.scorer is not None:
            self.scorer = load_net(settings.scorer).to(fabric.device)
            self.best = ("inception", 1)
        self._tests = 0

    @classmethod
    def build(cls, config: Config, fabric: Any) -> Gan:
        if config.schedule.name == "plateau":
            raise ValueError(
                "schedule.name plateau follows the loss or error of the test, and the test of task "
                "gan has neither: choose another schedule"
            )
        ranks = (fabric.global_rank, fabric.world_size)
        loaders = make_loaders(config.data, config.seed, *ranks, device=fabric.device)
        discriminator = make_sized_model(config.model, loaders.shape)
        generator = make_sized_model(config.gan.generator, loaders.shape[:1])
        made = _shape_of_samples(generator)
        if made != tuple(loaders.shape):
            raise ValueError(
                f"gan.generator makes samples of shape {made}, those of the data have "
                f"{tuple(loaders.shape)}: change its options (widths), or data.options"
            )
        change_net(config, discriminator)
        nets = nn.ModuleDict({"discriminator": discriminator, "generator": generator})
        return cls(config.gan, nets, loaders, config.seed, fabric)

    def objectives(self) -> list[Objective]:
        discriminator, generator = self.model["discriminator"], self.model["generator"]
        wasserstein = self.settings.loss == "wasserstein"
        penalty = self.settings.gradient_penalty
        against = DiscriminatorLoss(discriminator, generator, wasserstein, penalty)
        return [
            Objective(discriminator, against),
            Objective(
                generator,
                GeneratorLoss(generator, discriminator, wasserstein),
                self.settings.generator_every,
            ),
        ]

    @property
    def batches_per_epoch(self) -> int:
        return len(self.loaders.train)

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            for x, _ in self.loaders.train:
                yield (x.to(self.device),)

    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]:
        half = len(outputs) // 2
        right = torch.cat([outputs[:half] > 0, outputs[half:] <= 0])
        return {"accuracy": right.double().mean()}

    @torch.no_grad()
    def generate(self, count: int) -> Tensor:
        """Pictures of a fixed set of z, (count, C, H, W) in -1..1."""
        generator: Any = self.model["generator"]
        random = torch.Generator().manual_seed(self.seed)
        z = torch.randn(count, *generator.input_shape, generator=random)
        return torch.cat([generator(part.to(self.device)) for part in z.split(100)])

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Mean D of real and generated pictures; with a scorer, how good those are."""
        self._tests += 1
        count = self.settings.samples
        fake = self.generate(count)
        real = torch.cat([x for x, _ in self.loaders.test])[:count].to(self.device)
        score = self.model["discriminator"]
        found = {
            "order": float(self._tests),
            "real": float(torch.cat([score(p) for p in real.split(100)]).sigmoid().mean()),
            "generated": float(torch.cat([score(p) for p in fake.split(100)]).sigmoid().mean()),
        }
        if self.scorer is not None:
            from hypersphere.evaluation import frechet_distance, inception_score

            features = [
                torch.cat([self.scorer.features(p) for p in v.split(100)]) for v in (fake, real)
            ]
            found["inception"] = inception_score(self.scorer.head(features[0]).cpu()).score
            found["frechet"] = frechet_distance(features[0].cpu(), features[1].cpu()).distance
        # Each process has measured its own share of the test part; all go on with the same values.
        return self.fabric.broadcast(found) if self.fabric.world_size > 1 else found

    @classmethod
    def metrics(cls, config: Config) -> tuple[str, ...]:
        """The names of what a test gives, the main one first."""
        scored = ("inception", "frechet") if config.gan.scorer is not None else ()
        return (*scored, "generated", "real", "order")

    def conclude(self, run: Any, record: RunFolder, say: Any) -> dict[str, Any]:
        """Keep 64 generated pictures as samples.npy, (64, C, H, W) uint8."""
        pictures = ((self.generate(64).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        record.array("samples.npy", pictures.cpu().numpy())
        return {"samples": "samples.npy"}

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loaders.train.state_dict(), "step": self._tests}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaders.train.load_state_dict(state["loader"])
        self._tests = state["step"]
