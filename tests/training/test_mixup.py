"""mixup with a margin, from the hook to the loss."""

import json

import pytest
import torch
from small_run import run, small_config
from torch import nn

from hypersphere import heads, models
from hypersphere.training import ClassifierLoss, TrainConfig
from hypersphere.training.mixup import Mixup
from tolerances import close


def net(head):
    return models.Classifier(nn.Linear(4, 6), head)


@pytest.mark.parametrize(
    "head", [heads.ArcFaceHead(6, 5), heads.HingeHead(6, 5), nn.Linear(6, 5)], ids=str
)
def test_the_loss_of_mixed_pictures_is_the_mixed_loss(head):
    x, y = torch.randn(8, 4), torch.randint(5, (8,))
    mixed, labels, shares = Mixup(alpha=1.0).change_batch(None, (x, y))
    share = shares[0, 0]
    assert 0 <= share <= 1 and torch.equal(labels[:, 0], y)
    close(shares.sum(1), torch.ones(8))
    back = (mixed - share * x) / (1 - share)  # the partner of each picture
    where = torch.cdist(back, x).argmin(1)
    close(x[where], back, scale=100)
    assert torch.equal(labels[:, 1], y[where])
    model = net(head)
    expected = share * model.loss(mixed, y) + (1 - share) * model.loss(mixed, labels[:, 1])
    close(model.loss(mixed, labels, shares=shares), expected)
    close(ClassifierLoss(model)(mixed, labels, shares)[0], expected)
    rows = torch.tensor([0, 3])
    part = model.loss(mixed, labels, mask=rows, shares=shares, reduction="none")
    close(part, model.loss(mixed, labels, shares=shares, reduction="none")[rows])


def test_soft_labels_go_to_the_head():
    model = net(heads.ArcFaceHead(6, 5))
    x, y = torch.randn(8, 4), torch.randint(5, (8,))
    close(model.loss(x, nn.functional.one_hot(y, 5).float()), model.loss(x, y))


def test_a_run_with_mixup(tmp_path):
    config = small_config(
        head={"name": "arcface", "m": {"start": 0.0, "end": 0.4, "steps": 8}},
        hooks={"mixup": {"alpha": 0.4}},
        train=TrainConfig(steps=12, log_every=4, test_every=4, quiet=True),
    )
    run(config, tmp_path / "whole")
    lines = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    trained = [line for line in lines if line["split"] == "train"]
    assert [line["margin"] for line in trained] == pytest.approx([0.2, 0.4, 0.4])
    assert all(0 <= line["accuracy"] <= 1 for line in trained)


def test_alpha_is_checked():
    with pytest.raises(ValueError, match="alpha must be a number in"):
        Mixup(alpha=0.0)
