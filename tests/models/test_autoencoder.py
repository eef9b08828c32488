"""The autoencoder of Fig. 1.1: what its encoder emits, and shapes that come back."""

import pytest
import torch

from hypersphere import models


@pytest.mark.parametrize("size", [28, 8, 9, (13, 7)])
def test_the_image_comes_back_in_its_own_size(size):
    net = models.create("autoencoder", image_size=size, widths=(4, 6), features=3)
    (x,) = net.example_inputs(2)
    assert net(x).shape == x.shape
    assert net.encode(x).flatten(1).shape == (2, net.out_features)


def test_product_is_angle_times_norm():
    net = models.create("autoencoder", image_size=12, widths=(4,), features=3).double().eval()
    x = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    product, angle, norm = (
        net.encode(x, emit, rescale=False) for emit in ("product", "angle", "norm")
    )
    torch.testing.assert_close(angle * norm, product)
    assert angle.abs().max() <= 1 + 1e-12
    # One entry by hand: filter 1 on the patch around row 2, column 2 of the strided map.
    hidden = torch.nn.functional.pad(net.encoder(x), (1, 1, 1, 1))
    patch, weight = hidden[0, :, 4:7, 4:7], net.latent.weight[1]
    assert norm[0, 1, 2, 2].item() == pytest.approx((patch.norm() * weight.norm()).item())


def test_rescaling_keeps_directions_and_matches_the_range():
    net = models.create("autoencoder", image_size=12, widths=(4,), features=3).eval()
    x = torch.rand(2, 1, 12, 12)
    product, angle = net.encode(x), net.encode(x, emit="angle", rescale=False)
    scaled = net.encode(x, emit="angle")
    torch.testing.assert_close(scaled.square().mean(), product.square().mean())
    ratio = scaled / angle
    torch.testing.assert_close(ratio, ratio[0, 0, 0, 0].expand_as(ratio), rtol=1e-3, atol=1e-4)


def test_an_empty_image_has_no_angles_but_finite_output():
    net = models.create("autoencoder", image_size=12, widths=(4,), norm="none").eval()
    x = torch.zeros(1, 1, 12, 12)
    assert net.encode(x, emit="angle").abs().max() == 0
    assert net(x, emit="angle").isfinite().all()


def test_emissions_are_named():
    net = models.create("autoencoder", image_size=12, widths=(4,))
    with pytest.raises(ValueError, match="unknown emission 'angles'; did you mean 'angle'"):
        net(torch.zeros(1, 1, 12, 12), emit="angles")
