"""Few-shot learning (7.5.3, F.3): pretraining, then a new classifier for every episode."""

from __future__ import annotations

from typing import Any

from hypersphere.registry import register
from hypersphere.training.config import Config, FewShotConfig
from hypersphere.training.diagnose import check_lengths
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.tasks.classification import Classification, extract_features

__all__ = ["FewShot"]


def refuse_trained_classes(split: Any) -> None:
    """ValueError if the test part of a split, or its validation part, has classes of `train`."""

    def names(part: Any) -> set[str]:
        return {str(part.classes[i]) for i in part.labels.unique().tolist()}

    trained = names(split.train)
    for place in ("test", "validation"):
        part = getattr(split, place)
        both = sorted(trained & names(part)) if part is not None else []
        if both:
            raise ValueError(
                f"task few_shot tests on classes that are not trained; the {place} part of "
                f"{split.name or 'the data'} has {len(both)} trained classes ({both[0]}, ...): "
                f"keep classes for it with data.holdout (a share, such as 0.5), take a data set "
                f"that is split by class, or, where other classes have the same names (two parts "
                f"that count from 0), give them names of their own"
            )


@register("task", "few_shot", source="Sec. 7.5.3, F.3")
class FewShot(Classification):
    """Classification of the base classes, tested on episodes of classes never trained.

    Tests on the way take the validation classes (the test classes, if there are none) and compare
    with class means; at the end each method of F.3 is trained on every episode of the test
    classes.
    """

    sections = Classification.sections | {"few_shot"}
    settings: FewShotConfig
    tests_new_classes = True

    @classmethod
    def build(cls, config: Config, fabric: Any, split: Any = None) -> Classification:
        task = super().build(config, fabric, split)
        assert task.labeled is not None
        refuse_trained_classes(task.labeled.split)
        task.settings = config.few_shot  # type: ignore[attr-defined]
        return task

    def test(self) -> dict[str, float]:
        assert self.labeled is not None
        part = self.labeled.split.validation or self.labeled.split.test
        result = self._evaluate(part, "nearest_mean", 100)
        return {"accuracy": result.accuracy, "error": 1 - result.accuracy}

    @classmethod
    def metrics(cls, config: Config) -> tuple[str, ...]:
        methods = (f"{method}_accuracy" for method in config.few_shot.methods)
        return ("accuracy", "error", *methods)

    def conclude(self, run: Any, record: RunFolder, say: Any) -> dict[str, Any]:
        assert self.labeled is not None
        found = {}
        for method in self.settings.methods:
            result = self._evaluate(self.labeled.split.test, method, self.settings.episodes)
            say(str(result))
            found[method] = {"accuracy": result.accuracy, "half_width": result.half_width}
        return {"few_shot": found}

    def _evaluate(self, part: Any, method: str, episodes: int) -> Any:
        from hypersphere.evaluation import fewshot

        assert self.labeled is not None
        s = self.settings
        loader = self.labeled.over(part)
        features, labels = extract_features(self.model, loader, self.fabric.device)
        check_lengths(features, self.model)
        return fewshot(
            features,
            labels,
            method,
            way=s.way,
            shot=s.shot,
            queries=s.queries,
            episodes=episodes,
            scale=s.scale,
            epochs=s.epochs,
            lr=s.lr,
            batch_size=s.batch_size,
        )
