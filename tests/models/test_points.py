"""PointNet and PointNet++: sampling against one-at-a-time code, invariances, T-Nets."""

import pytest
import torch

from hypersphere import models

from reference import point_sets


def test_farthest_points_and_balls_against_the_reference():
    points = torch.rand(3, 40, 3, dtype=torch.float64)
    picked = models.farthest_points(points, 12)
    centers = torch.stack([cloud[index] for cloud, index in zip(points, picked, strict=True)])
    groups = models.ball_query(points, centers, radius=0.35, count=6)
    for b, cloud in enumerate(points.tolist()):
        assert picked[b].tolist() == point_sets.farthest_points(cloud, 12)
        for m, center in enumerate(centers[b].tolist()):
            assert groups[b, m].tolist() == point_sets.ball_query(cloud, center, 0.35, 6)


def test_ball_query_edges():
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0]]])
    far = torch.tensor([[[9.0, 0, 0]]])
    assert models.ball_query(points, far, 0.5, 3).tolist() == [[[0, 0, 0]]]  # nothing near
    assert models.ball_query(points, points[:, 1:], 0.5, 3).tolist() == [[[1, 1, 1]]]  # few points
    same = torch.ones(1, 4, 3)
    assert models.ball_query(same, same[:, :1], 0.1, 2).tolist() == [[[0, 1]]]
    assert models.farthest_points(same, 2).shape == (1, 2)
    with pytest.raises(ValueError, match="cannot pick 5 of 4 points"):
        models.farthest_points(same, 5)


@pytest.mark.parametrize("name", ["pointnet", "pointnet_tnet"])
def test_pointnet_ignores_the_order_and_number_of_points(name):
    net = models.create(name).eval()
    points = torch.randn(2, 20, 3)
    features = net(points)
    torch.testing.assert_close(net(points[:, torch.randperm(20)]), features)
    torch.testing.assert_close(net(torch.cat([points, points[:, :7]], dim=1)), features)


def test_pointnet2_sees_points_only_through_their_groups():
    points = torch.rand(2, 16, 3)
    shuffled = torch.cat([points[:, :1], points[:, 1:][:, torch.randperm(15)]], dim=1)
    # Balls that have room for all points in reach: only the first center decides about the groups.
    net = models.create("pointnet2", centers=(6, 3), neighbors=(16, 6), radii=(0.8, 1.5)).eval()
    torch.testing.assert_close(net(shuffled), net(points))
    assert net(points).shape == (2, 256)


def test_tnets_start_as_the_identity_and_are_penalized():
    net = models.create("pointnet_tnet").eval()
    points = torch.randn(2, 8, 3)
    turn = net.input_transform(points.mT)
    torch.testing.assert_close(turn, torch.eye(3).expand(2, 3, 3))
    features, penalty = net.features_and_penalty(points)
    torch.testing.assert_close(features, net(points))
    assert penalty.item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        net.feature_transform.matrix.start.mul_(2)  # A = 2 I: |4 I - I|^2 = 9 * 64 for each cloud
    _, penalty = net.features_and_penalty(points)
    assert penalty.item() == pytest.approx(0.001 / 2 * 2 * 9 * 64, rel=1e-5)
    head = torch.nn.Linear(256, 4)
    labels = torch.tensor([0, 1])
    plain = torch.nn.functional.cross_entropy(head(features := net(points)), labels)
    loss = models.Classifier(net, head).loss(points, labels)
    torch.testing.assert_close(loss, plain + penalty)
    assert features.shape == (2, 256)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pointnet", {}),
        ("pointnet_tnet", {}),
        ("pointnet2", {"centers": (6, 3), "neighbors": (4, 3), "radii": (0.8, 1.5)}),
    ],
)
def test_gradients_reach_every_parameter(name, options):
    net = models.Classifier(models.create(name, **options), torch.nn.Linear(256, 4))
    net.loss(torch.rand(4, 16, 3), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key


def test_wrong_point_clouds_are_told_apart():
    with pytest.raises(ValueError, match=r"point clouds \(B, N, 3\); got \(2, 3, 16\)"):
        models.create("pointnet")(torch.zeros(2, 3, 16))
    with pytest.raises(ValueError, match="one number per level"):
        models.create("pointnet2", centers=(4,))
    with pytest.raises(ValueError, match="five 1x1 convolutions"):
        models.create("pointnet", widths=(8, 8))
