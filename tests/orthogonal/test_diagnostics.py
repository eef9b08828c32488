"""What the diagnostics say."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from tolerances import close

# "# Parameters" of Tables F.4 (shared) and F.5 (independent blocks) for filters of 3 x 3 x 64.
TABLE = {
    1: (331_776, 331_776),
    2: (82_944, 165_888),
    4: (20_736, 82_944),
    16: (1_296, 20_736),
    64: (81, 5_184),
}


@pytest.mark.parametrize("blocks", [4, 16, 64])
@pytest.mark.parametrize("share", [True, False])
def test_parameter_counts_are_those_of_the_tables(blocks, share):
    def report(method):
        layer = nn.Conv2d(64, 4, 3)
        hs.orthogonal.rotate(layer, method, blocks=blocks, share_blocks=share)
        return hs.orthogonal.report(layer)

    d = 576 // blocks
    assert report("gram_schmidt").parameters == TABLE[blocks][0 if share else 1]
    # a skew matrix is what lies above its diagonal
    assert report("cayley").parameters == (1 if share else blocks) * d * (d - 1) // 2
    assert report("cayley").baseline_parameters == 4 * 576


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("method", ["regularized", "ogd", "none"])
def test_penalty_of_blocks_is_that_of_the_whole_matrix(method, share):
    layer = hs.orthogonal.rotate(nn.Linear(8, 4), method, blocks=4, share_blocks=share)
    rotation = layer.parametrizations.weight[0]
    with torch.no_grad():
        rotation.map.U += 0.1 * torch.randn_like(rotation.map.U)
    R = rotation.map.dense()[0]
    expected = (R.T @ R - torch.eye(8)).square().sum()
    torch.testing.assert_close(hs.orthogonal.orthogonality_penalty(layer), expected)
    unsquared = hs.orthogonal.orthogonality_penalty(layer, squared=False)
    torch.testing.assert_close(unsquared, expected.sqrt())


def test_orthogonality_error_of_a_function_says_that_there_is_none():
    layer = hs.orthogonal.rotate(nn.Linear(6, 4), lambda rows: rows.flip(-1))
    with pytest.raises(ValueError, match="no layer has a matrix R"):
        hs.orthogonal.orthogonality_error(layer)


@pytest.mark.parametrize("share", [True, False])
def test_report(share):
    model = nn.Sequential(nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3))
    hs.orthogonal.rotate(model, "householder", blocks=2, share_blocks=share)
    report = hs.orthogonal.report(model)
    conv, linear = report.layers
    assert (conv.name, conv.neurons, conv.dim, conv.blocks) == ("0", 6, 16, 2)
    assert (linear.name, linear.neurons, linear.dim) == ("2", 5, 6)
    for layer in report.layers:
        assert layer.energy_start == pytest.approx(layer.energy_now, abs=1e-6)
        assert layer.orthogonality_error < 1e-5
        # Householder: n - 1 reflections a block, so the determinant of two blocks is +1.
        assert layer.determinant == pytest.approx(1.0, abs=1e-4)
    assert "householder" in str(report) and len(str(report).splitlines()) == 4
    assert report.to_dict()["layers"][0]["dim"] == 16
    single = hs.orthogonal.rotate(nn.Linear(6, 4), "householder")
    assert hs.orthogonal.report(single).layers[0].determinant == pytest.approx(-1.0, abs=1e-4)


def test_energy_leaves_only_without_orthogonality():
    torch.manual_seed(0)
    for method, stays in (("gram_schmidt", True), ("none", False)):
        layer = hs.orthogonal.rotate(nn.Linear(8, 6), method)
        with torch.no_grad():
            next(p for p in layer.parameters() if p.dim() == 4).add_(0.3 * torch.randn(8, 8))
        row = hs.orthogonal.report(layer).layers[0]
        assert (abs(row.energy_now - row.energy_start) < 1e-5) == stays
        assert (row.orthogonality_error < 1e-5) == stays


def test_penalty_is_equation_7_7():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    hs.orthogonal.rotate(model, "regularized")
    expected = expected_norm = 0.0
    with torch.no_grad():
        for name, U in model.named_parameters():
            if name.endswith(".U"):
                U += 0.1 * torch.randn_like(U)
                R = U[0, 0]
                squared = ((R.T @ R - torch.eye(4)) ** 2).sum()
                expected, expected_norm = expected + squared, expected_norm + squared.sqrt()
    penalty = hs.orthogonal.orthogonality_penalty(model)
    close(penalty, expected)
    unsquared = hs.orthogonal.orthogonality_penalty(model, squared=False)
    close(unsquared, expected_norm)
    optimizer = torch.optim.SGD(hs.orthogonal.parameter_groups(model), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        hs.orthogonal.orthogonality_penalty(model).backward()
        optimizer.step()
    assert hs.orthogonal.orthogonality_error(model) < 1e-3
    with pytest.raises(ValueError, match="no layer has a free matrix"):
        hs.orthogonal.orthogonality_penalty(hs.orthogonal.rotate(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="no rotated layer"):
        hs.orthogonal.orthogonality_error(nn.Linear(3, 3))
