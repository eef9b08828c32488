"""Few-shot learning (7.5.3, F.3): pretraining, then a new classifier for every episode."""

from __future__ import annotations

from typing import Any

from hypersphere.training.config import FewShotConfig
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.tasks.classification import Classification, extract_features

__all__ = ["FewShot"]


class FewShot(Classification):
    """Classification of the base classes, tested on episodes of classes never trained.

    Tests on the way take the validation classes (the test classes, if there are none) and compare
    with class means; at the end each method of F.3 is trained on every episode of the test
    classes.
    """

    def __init__(self, *arguments: Any, settings: FewShotConfig, loaders: Any) -> None:
        super().__init__(*arguments)
        self.settings, self.loaders = settings, loaders

    def test(self) -> dict[str, float]:
        part = self.loaders.split.validation or self.loaders.split.test
        result = self._evaluate(part, "nearest_mean", 100)
        return {"accuracy": result.accuracy, "error": 1 - result.accuracy}

    def conclude(self, run: Any, record: RunFolder, say: Any) -> dict[str, Any]:
        found = {}
        for method in self.settings.methods:
            result = self._evaluate(self.loaders.split.test, method, self.settings.episodes)
            say(str(result))
            found[method] = {"accuracy": result.accuracy, "half_width": result.half_width}
        return {"few_shot": found}

    def _evaluate(self, part: Any, method: str, episodes: int) -> Any:
        from hypersphere.evaluation import fewshot

        s = self.settings
        features, labels = extract_features(self.model, self.loaders.over(part), self.fabric.device)
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
