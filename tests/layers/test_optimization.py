"""Weight projection, weighted gradients and parameter groups (4.4)."""

import pytest
import torch
from torch import nn

from hypersphere import layers as hl
from hypersphere.layers.positive import PositiveParameter
from tolerances import close


def network():
    return nn.Sequential(
        hl.SphereConv2d(3, 4, 3, bias=True, angular=hl.SigmoidAngular(learnable=True)),
        hl.TanhConv2d(4, 5, 3, weighted="linear"),
        nn.BatchNorm2d(5),
        nn.Conv2d(5, 6, 1),
        nn.Flatten(),
        hl.BallLinear(6 * 16, 2, rescale=True),
    )


def lengths(layer):
    return layer.weight.detach().flatten(1).norm(dim=1)


def test_projection_keeps_the_function_and_weighted_layers():
    net = network()
    x = torch.randn(2, 3, 8, 8)
    want = net(x)
    before = [layer.weight.clone() for layer in (net[1], net[3])]
    assert hl.project_weights(net, radius=2.0) == 2
    for layer in (net[0], net[5]):
        torch.testing.assert_close(lengths(layer), torch.full((len(layer.weight),), 2.0))
    for layer, weight in zip((net[1], net[3]), before, strict=True):
        assert torch.equal(layer.weight, weight)
    close(net(x), want, scale=10)
    layer = hl.SphereConv2d(3, 4, 3)
    nn.init.zeros_(layer.weight)
    hl.project_weights(layer)
    assert (layer.weight == 0).all()
    with pytest.raises(ValueError, match="radius > 0"):
        hl.project_weights(net, radius=0.0)


def test_weighted_gradients_do_not_depend_on_the_length():
    """Eq. 4.17: the gradient is that at |w| = 1 over |w|; Eq. 4.18 multiplies |w| back."""
    x = torch.randn(4, 6)
    gradients = []
    for length in (1.0, 1.0, 50.0):
        torch.manual_seed(1)
        layer = hl.LinearLinear(6, 3)
        hl.project_weights(layer, length)
        handle = hl.weighted_gradients(layer) if gradients else None
        layer(x).square().sum().backward()
        gradients.append(layer.weight.grad)
    unit, unit_weighted, long_weighted = gradients
    torch.testing.assert_close(unit_weighted, unit)
    torch.testing.assert_close(long_weighted, unit)
    handle.remove()
    layer.weight.grad = None
    layer(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, unit / 50)


def test_weighted_gradients_leave_frozen_filters_and_weigh_tied_ones_once():
    net = nn.Sequential(*(hl.LinearLinear(4, 4) for _ in range(3)))
    net[0].weight.requires_grad_(False)
    net[2].weight = net[1].weight
    x = torch.randn(5, 4)
    (plain,) = torch.autograd.grad(net(x).square().sum(), net[1].weight)
    hl.weighted_gradients(net)
    net(x).square().sum().backward()
    assert net[0].weight.grad is None
    torch.testing.assert_close(net[1].weight.grad, plain * lengths(net[1])[:, None])


def test_weighted_layers_keep_their_gradients():
    net, other = network(), network()
    other.load_state_dict(net.state_dict())
    handle = hl.weighted_gradients(net)
    assert len(handle.handles) == 2
    x = torch.randn(2, 3, 8, 8)
    net(x).sum().backward(), other(x).sum().backward()
    torch.testing.assert_close(net[1].weight.grad, other[1].weight.grad)
    torch.testing.assert_close(
        net[0].weight.grad, other[0].weight.grad * lengths(net[0])[:, None, None, None]
    )


def test_the_gradient_is_perpendicular_to_the_filter():
    layer = hl.SphereConv2d(3, 4, 3)
    layer(torch.randn(2, 3, 8, 8)).square().sum().backward()
    inner = (layer.weight.grad * layer.weight).flatten(1).sum(1)
    torch.testing.assert_close(inner, torch.zeros(4), rtol=0, atol=1e-4)


def test_parameter_groups():
    net = network()
    decayed, free = hl.parameter_groups(net, weight_decay=0.1)
    assert decayed["weight_decay"] == 0.1 and free["weight_decay"] == 0.0
    names = {id(p): n for n, p in net.named_parameters()}
    assert {names[id(p)] for p in free["params"]} == {
        "0.weight", "0.operator.angular.curvature.raw", "1.operator.magnitude.rho.raw", "5.weight",
        "5.operator.magnitude.rho.raw", "5.operator.rescale.beta", "5.operator.rescale.gamma",
    }  # fmt: skip
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    torch.optim.SGD([decayed, free], lr=0.1)
    assert len(hl.parameter_groups(nn.Linear(2, 2))) == 1


def test_parameter_groups_read_marks():
    class Scale(nn.Module):
        no_weight_decay = ("log_scale",)

        def __init__(self):
            super().__init__()
            self.log_scale, self.other = (nn.Parameter(torch.zeros(1)) for _ in range(2))

    class Method(Scale):
        def no_weight_decay(self):
            return {"other"}

    net = nn.Sequential(Scale(), Method(), nn.Linear(2, 2), PositiveParameter(1.0))
    net[2].bias.no_weight_decay = True
    _, free = hl.parameter_groups(net)
    want = [net[0].log_scale, net[1].other, net[2].bias, net[3].raw]
    assert [id(p) for p in free["params"]] == [id(p) for p in want]


def test_other_parameter_groups_see_the_marks_of_operators():
    from hypersphere.orthogonal import parameter_groups as orthogonal_groups
    from hypersphere.training.optimizers import optimizer_groups as training_groups

    net = nn.Sequential(
        hl.TanhConv2d(3, 4, 3, angular=hl.SigmoidAngular(learnable=True), rescale=True)
    )
    operator = {id(p) for p in net[0].operator.parameters()}
    assert len(operator) == 4
    for groups in (orthogonal_groups(net, 0.1), training_groups(net, 0.1)):
        decayed = {id(p) for g in groups if g["weight_decay"] for p in g["params"]}
        assert not decayed & operator
