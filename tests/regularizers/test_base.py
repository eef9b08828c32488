import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.registry import entry, names
from hypersphere.regularizers import SRIP, Orthonormal, WeightRegularizer


class Coherence(WeightRegularizer):
    """Largest cosine between two neurons of a layer."""

    def penalty(self, weight):
        return HF.pairwise_cosine(weight).fill_diagonal_(-1.0).amax()


def test_a_regularizer_of_ones_own_is_one_function():
    net = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6, 3))
    parts = [
        HF.pairwise_cosine(w).fill_diagonal_(-1.0).amax() for w in net[0].weight.flatten(1).split(3)
    ]
    regularizer = Coherence(weight=0.5)
    torch.testing.assert_close(regularizer(net), 0.5 * (parts[0] + parts[1]))
    regularizer(net).backward()
    assert net[0].weight.grad.isfinite().all() and net[2].weight.grad is None
    assert [layer.name for layer in regularizer.report(net)] == ["0"]
    assert [x.name for x in Coherence(output=1.0, skip=("0",)).report(net)] == ["2"]
    with pytest.raises(ValueError, match="weight must be a finite number"):
        Coherence(weight=-1.0)


def test_without_a_penalty_it_says_so():
    with pytest.raises(NotImplementedError, match="has to define penalty"):
        WeightRegularizer(output=1.0)(nn.Linear(4, 3))


def test_regularizers_are_registered_where_they_are_defined():
    assert {"mhe", "comhe", "orthonormal", "orthogonal", "srip"} <= set(names("regularizer"))
    for name in ("mhe", "comhe", "orthonormal", "orthogonal", "srip"):
        found = entry("regularizer", name)
        assert found.target in vars(hs.regularizers).values() and found.summary and found.source


def test_the_vector_of_srip_survives_weights_out_of_range():
    layer, regularizer = nn.Linear(6, 4, bias=False), SRIP(output=1.0)
    usual = layer.weight.detach().clone()
    for scale in (1e30, 1.0):
        with torch.no_grad():
            layer.weight.copy_(scale * usual)
        value = regularizer(layer)
        assert value.isfinite() and Orthonormal(output=1.0)(layer).isfinite()
    assert value < 2
