"""The example of docs/finetuning.md, on a tiny GPT-2, BERT, Llama and ViT."""

import re
from pathlib import Path

import pytest
import torch

import hypersphere as hs
from tolerances import close

pytest.importorskip("transformers")
from tiny_models import MODELS, classifier, inputs, logits, make

PAGE = Path(__file__).parents[2] / "docs" / "finetuning.md"


def example() -> str:
    """The second block of the page: the one that does not make a model."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return blocks[1]


@pytest.mark.parametrize("name", MODELS)
def test_the_example_runs(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    model = make(name)
    before = logits(model, name)
    batches = [inputs(name, seed=seed) for seed in range(3)]
    exec(example(), {"model": model, "classifier": classifier(model), "batches": batches})
    printed = capsys.readouterr().out
    assert "cayley" in printed and "output layer" in printed
    # attention and feed-forward layers, not the classifier alone
    rotated = list(hs.orthogonal.report(model).layers)
    assert len(rotated) >= 8
    after = logits(model.eval(), name)
    assert (after - before).abs().max() > 1e-4
    adapted = hs.orthogonal.load_adapter(make(name), tmp_path / "adapter")
    assert torch.equal(logits(adapted, name), after)
    tuned = type(make(name)).from_pretrained(tmp_path / "tuned").eval()
    close(logits(tuned, name), after, scale=10)


def test_the_example_has_ten_statements():
    lines = [line for line in example().splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10
