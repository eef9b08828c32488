"""The hinge loss against its sum, term by term."""

import pytest
import torch

from hypersphere import heads, regularizers


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_one_against_all(squared, bias):
    torch.manual_seed(0)
    head = heads.HingeHead(5, 4, margin=0.7, squared=squared, bias=bias).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 2])
    scores = head(x, y)
    assert torch.equal(scores, head(x))
    each = []
    for row, label in zip(scores.tolist(), y.tolist(), strict=True):
        terms = [max(0.0, 0.7 - (1 if j == label else -1) * f) for j, f in enumerate(row)]
        each.append(sum(t**2 if squared else t for t in terms))
    wanted = torch.tensor(each)
    torch.testing.assert_close(head.loss(x, y, "none"), wanted)
    torch.testing.assert_close(head.loss(x, y), wanted.mean())
    torch.testing.assert_close(head.loss(x, y, "sum"), wanted.sum())


def test_it_is_a_head_like_the_others():
    head = heads.HingeHead(8, 3)
    assert regularizers.MHE(output=1.0)(torch.nn.Sequential(head)) > 0  # its neurons count
    x = torch.randn(64, 8)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        head.loss(x, y).backward()
        optimizer.step()
    assert (head(x).argmax(1) == y).float().mean() > 0.9
    with pytest.raises(ValueError, match="no label smoothing"):
        head.loss(x, y, label_smoothing=0.1)
    with pytest.raises(ValueError, match="reduction is mean, sum or none; got 'all'"):
        head.loss(x, y, "all")
    with pytest.raises(ValueError, match="margin must be above 0; got 0"):
        heads.HingeHead(8, 3, margin=0)


def test_ignored_samples_do_not_count():
    head = heads.HingeHead(4, 3)
    x, y = torch.randn(5, 4), torch.tensor([0, -100, 2, 1, -100])
    kept = y != -100
    torch.testing.assert_close(head.loss(x, y), head.loss(x[kept], y[kept]))
    torch.testing.assert_close(head.loss(x, y, "sum"), head.loss(x[kept], y[kept], "sum"))
    each = head.loss(x, y, "none")
    assert (each[~kept] == 0).all() and each.shape == (5,)
    other = torch.where(y == -100, torch.full_like(y, 255), y)
    torch.testing.assert_close(head.loss(x, other, ignore_index=255), head.loss(x, y))
    broken = x.clone().requires_grad_()
    with torch.no_grad():
        broken[1] = float("nan")
    head.loss(broken, y).backward()
    assert broken.grad[kept].isfinite().all()


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (4, torch.tensor([0, 1, 2]), r"labels of shape \(4,\) for 4 features, got \(3,\)"),
        (2, torch.tensor([0, 3]), "label 3 .* C = 3"),
        (2, torch.tensor([0, -1]), "label -1 .* C = 3"),
        (2, torch.rand(2, 3), "class labels are integers"),
    ],
)
def test_wrong_labels_are_named(rows, labels, message):
    with pytest.raises(ValueError, match=message):
        heads.HingeHead(4, 3).loss(torch.randn(rows, 4), labels)
    with pytest.raises(ValueError, match=r"features of shape \(B, 4\)"):
        heads.HingeHead(4, 3).loss(torch.randn(2, 5), torch.tensor([0, 1]))
