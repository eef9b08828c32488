"""Trainings that fail for a known reason get that reason told, healthy ones are left in peace."""

import math

import pytest
import torch

import hypersphere.heads as heads
from hypersphere.heads import LambdaAnnealing, diagnose


def clusters(n=200, classes=10, dim=16, noise=0.1):
    y = torch.randint(classes, (n,))
    return torch.eye(dim)[y] * 8 + noise * torch.randn(n, dim), y


def on_classes(head):
    with torch.no_grad():
        head.weight.copy_(torch.eye(head.num_classes, head.in_features))
    return head


def test_a_good_head_is_healthy():
    x, y = clusters()
    found = diagnose(on_classes(heads.AMSoftmaxHead(16, 10)), x, y)
    assert found.healthy and found.accuracy == 1
    assert "nothing conspicuous" in str(found)


def test_a_scale_that_is_too_small():
    x, y = clusters()
    found = diagnose(on_classes(heads.SSoftmaxHead(16, 10, scale=1.0)), x, y)
    assert not found.healthy and "the scale 1 is too small for 10 classes" in found.advice[0]
    enough = int(found.advice[0].split("scale=")[1].split()[0])
    assert diagnose(on_classes(heads.SSoftmaxHead(16, 10, scale=enough)), x, y).healthy


def test_a_margin_before_anything_is_learned():
    x, y = clusters()
    head = heads.ASoftmaxHead(16, 10, m=4)  # random classes
    found = diagnose(head, x, y)
    assert "before anything is learned" in str(found)
    assert "head.annealing = LambdaAnnealing.sphereface()" in str(found)
    head.annealing = LambdaAnnealing(minimum=0.0, iteration=10**9)
    assert "let lambda fall more slowly" in str(diagnose(head, x, y))
    head.annealing = LambdaAnnealing()  # lambda = 1000: no margin yet
    assert "before anything is learned" not in str(diagnose(head, x, y))


def test_a_margin_too_hard_for_features_that_are_nearly_right():
    head = on_classes(heads.ASoftmaxHead(16, 10, m=8))
    found = diagnose(head, *clusters(noise=7.0))
    assert 0.2 < found.accuracy < 0.5 and found.loss > math.log(10)
    assert "the margin is too hard for now" in str(found) and "smaller m" in str(found)


@pytest.mark.parametrize("name", ["AdaFaceHead", "MagFaceHead", "ArcFaceHead", "ASoftmaxHead"])
def test_a_margin_under_which_classes_are_told_apart_is_not_too_hard(name):
    """AdaFace was told so at step 30 with 84 % accuracy."""
    head = on_classes(getattr(heads, name)(16, 10))
    for noise in (1.0, 2.0, 3.0):
        found = diagnose(head, *clusters(noise=noise))
        assert found.accuracy > 0.6 and "margin" not in "".join(found.advice), found


def test_a_loss_stuck_at_log_c():
    x, y = clusters()
    short = diagnose(heads.WSoftmaxHead(16, 10), 1e-3 * x, y)
    assert abs(short.plain_loss - math.log(10)) < 0.01 and "the features are short" in str(short)
    dead = diagnose(heads.WSoftmaxHead(16, 10), torch.zeros_like(x), y)
    assert "all features are zero" in str(dead)
    same = diagnose(heads.SoftmaxHead(16, 10), torch.ones(50, 16), y[:50])
    assert "nearly the same vector" in str(same)
    guess = heads.SoftmaxHead(16, 10)
    torch.nn.init.normal_(guess.weight, std=1e-3)
    assert "the loss stays at log C = 2.30" in str(diagnose(guess, x, y))


def test_nan_features_are_named():
    x, y = clusters()
    x[3, 3] = math.nan
    assert "not finite" in str(diagnose(heads.SoftmaxHead(16, 10), x, y))


def test_ignored_samples_are_left_out():
    x, y = clusters()
    head = on_classes(heads.AMSoftmaxHead(16, 10))
    ignored = torch.cat([y, torch.full((20,), -100)])
    found = diagnose(head, torch.cat([x, torch.randn(20, 16)]), ignored)
    assert found == diagnose(head, x, y)
    assert diagnose(head, x, torch.where(y == 3, 255, y), ignore_index=255).accuracy == 1
    with pytest.raises(ValueError, match="all are -100"):
        diagnose(head, x, torch.full_like(y, -100))
    with pytest.raises(ValueError, match="label 10 .* C = 10"):
        diagnose(head, x, torch.full_like(y, 10))


def test_training_is_not_disturbed():
    head = heads.ASoftmaxHead(16, 10, gradient="caffe")
    before = head.weight.detach().clone()
    diagnose(head, *clusters())
    assert torch.equal(head.weight, before) and head.weight.grad is None


@pytest.mark.parametrize("name", ["contrastive", "triplet", "MultiSimilarityLoss"])
def test_metric_losses_are_those_of_the_library(name):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, y = clusters(40)
    kind = {"contrastive": "ContrastiveLoss", "triplet": "TripletMarginLoss"}.get(name, name)
    expected = 0.5 * getattr(losses, kind)()(x, y)
    torch.testing.assert_close(heads.MetricLoss(name, weight=0.5)(x, y), expected)


def test_center_loss():
    x, y = clusters(40)
    loss = heads.MetricLoss("center", num_classes=10, in_features=16)
    torch.nn.init.normal_(loss.centers)
    x.requires_grad_()
    expected = 0.5 * (x - loss.centers[y]).square().sum(1).mean()
    got = loss(x, y)
    torch.testing.assert_close(got, expected)
    parts = (x, loss.centers)
    torch.testing.assert_close(
        torch.autograd.grad(got, parts), torch.autograd.grad(expected, parts)
    )


def test_unknown_metric_loss():
    pytest.importorskip("pytorch_metric_learning")
    with pytest.raises(ValueError, match="unknown metric loss 'hing'"):
        heads.MetricLoss("hing")
    with pytest.raises(ValueError, match="needs num_classes and in_features"):
        heads.MetricLoss("center")


@pytest.mark.parametrize("kind", [heads.ASoftmaxHead, heads.LSoftmaxHead])
def test_features_that_shrink_to_escape_the_margin(kind):
    torch.manual_seed(0)
    x, y = clusters()
    head = kind(16, 10, m=4)  # classes in random directions: the margin is not met
    found = diagnose(head, 1e-3 * x, y)
    assert abs(found.loss - math.log(10)) < 0.05  # the way out: no score, no loss above log C
    assert "shrinking them is the way out of a hard margin" in found.advice[0]
    assert "head.annealing = LambdaAnnealing.sphereface()" in found.advice[0]
    assert "BatchNorm" not in str(found)
    head.annealing = LambdaAnnealing(base=0.5, minimum=0.1)
    assert "let lambda fall more slowly" in str(diagnose(head, 1e-3 * x, y))
    head.annealing = LambdaAnnealing()  # lambda = 1000: no margin yet, so they are short by nature
    assert "BatchNorm" in str(diagnose(head, 1e-3 * x, y))
    if kind is heads.ASoftmaxHead:  # on their classes the margin is met, and they are only short
        assert "BatchNorm" in str(diagnose(on_classes(kind(16, 10, m=4)), 1e-3 * x, y))


def test_a_training_that_shrinks_its_features_is_told_to_anneal():
    directions = torch.nn.functional.normalize(torch.randn(256, 16))
    y = torch.randint(10, (256,))
    length = torch.nn.Parameter(torch.tensor(4.0))  # the only thing that may move
    head = heads.ASoftmaxHead(16, 10, m=4)
    optimizer = torch.optim.SGD([length], lr=0.2)
    before = head.loss(length * directions, y).item()
    for _ in range(100):
        optimizer.zero_grad()
        head.loss(length * directions, y).backward()
        optimizer.step()
        with torch.no_grad():
            length.clamp_min_(1e-3)
    found = diagnose(head, length * directions, y)
    assert found.scale < 0.5 and found.loss < before and not found.healthy, found
    assert "annealing" in str(found) and "BatchNorm" not in str(found)


def test_a_wrong_way_is_told_before_its_end():
    """Few updates after the start, when neither a short feature nor log C says anything."""
    torch.manual_seed(0)
    x, y = clusters()
    head = heads.ASoftmaxHead(16, 10, m=4)
    start = diagnose(head, x, y, fresh=True)
    assert start.healthy and diagnose(head, x, y, fresh=True, start=start).healthy
    for length, told in ((0.7, False), (0.4, True)):
        assert diagnose(head, length * x, y, fresh=True).healthy
        found = diagnose(head, length * x, y, fresh=True, start=start)
        assert ("the features shrink (mean |x| from " in str(found)) is told, found
    assert "LambdaAnnealing.sphereface()" in str(found)
    # Shorter, but nearer to their classes: they learn.
    assert diagnose(on_classes(head), 0.4 * x, y, fresh=True, start=start).healthy
    common = torch.randn(16)
    arc = heads.ArcFaceHead(16, 10)
    start = diagnose(arc, x, y, fresh=True)
    with torch.no_grad():
        arc.weight.copy_(-common + torch.randn(10, 16))
    found = diagnose(arc, common + 1.3 * torch.randn(200, 16), y, fresh=True, start=start)
    assert -0.5 < found.class_cosine < -0.3 and "turn opposite to all classes" in str(found), found


@pytest.mark.parametrize("kind", [heads.ArcFaceHead, heads.AdaFaceHead, heads.CurricularFaceHead])
def test_features_opposite_to_all_classes(kind):
    common = torch.randn(16)
    head = kind(16, 10)
    with torch.no_grad():
        head.weight.copy_(-common + 0.3 * torch.randn(10, 16))
    x, y = common + 0.3 * torch.randn(200, 16), torch.randint(10, (200,))
    for fresh in (False, True):
        found = diagnose(head, x, y, fresh=fresh)
        assert found.class_cosine < -0.8 and found.target_angle > 140
        assert len(found.advice) == 1 and "opposite to all classes at once" in found.advice[0]
        assert "MarginSchedule" in found.advice[0] and "BatchNorm" in found.advice[0]


@pytest.mark.parametrize(
    "kind",
    [
        heads.ArcFaceHead,
        heads.AdaFaceHead,
        heads.MagFaceHead,
        heads.CurricularFaceHead,
        heads.SphereFaceRHead,
        heads.SphereFace2Head,
    ],
)
def test_every_head_is_told_healthy_and_fresh(kind):
    x, y = clusters()
    found = diagnose(on_classes(kind(16, 10)), 3 * x, y)
    assert found.healthy and found.accuracy == 1, found
    head = kind(16, 10)
    random = diagnose(head, torch.randn(200, 16), y, fresh=True)
    assert random.healthy, random  # nothing to be seen yet
    later = diagnose(head, torch.randn(200, 16), y)
    assert kind is heads.SphereFace2Head or not later.healthy, later


def test_sub_centers_are_judged_by_the_nearest():
    x, y = clusters()
    head = heads.ArcFaceHead(16, 10, subcenters=2)
    with torch.no_grad():
        head.weight[:, 1] = torch.eye(10, 16)
    found = diagnose(head, x, y)
    assert found.healthy and found.target_angle < 10, found


@pytest.mark.parametrize(
    "head", [heads.SoftmaxHead(16, 10), heads.ArcFaceHead(16, 10), heads.ASoftmaxHead(16, 10)]
)
def test_zero_features_are_dead_not_collapsed(head):
    found = diagnose(head, torch.zeros(8, 16), torch.arange(8))
    assert len(found.advice) == 1 and "all features are zero" in found.advice[0]


@pytest.mark.parametrize("head", [heads.SoftmaxHead(16, 1), heads.ArcFaceHead(16, 1)])
def test_one_class_is_always_right(head):
    found = diagnose(head, torch.randn(8, 16), torch.zeros(8).long())
    assert found.accuracy == 1 and found.healthy, found


def test_right_answers_with_small_scores_are_no_guess():
    x, y = clusters()
    head = on_classes(heads.SoftmaxHead(16, 10))
    with torch.no_grad():
        head.weight *= 0.01
    found = diagnose(head, x, y)
    assert found.accuracy > 0.9 and "guesses" not in str(found)
    assert "the classes are told apart" in found.advice[0]
