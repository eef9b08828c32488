"""Merged adapters: the mean of rotations on the group, whatever the parameters behind them."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal.adapters import read
from tolerances import close

from reference import rotation_mean as reference


def base() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).requires_grad_(False)


def turned(seed: int, method: str = "cayley", skip=("2",), **options) -> nn.Module:
    """The base with every rotation moved by some tenths of a radian."""
    model = hs.orthogonal.rotate(base(), method, start="identity", skip=skip, **options)
    torch.manual_seed(seed)
    for module in model:
        if hasattr(module, "parametrizations"):
            U = module.parametrizations.weight[0].map.U
            with torch.no_grad():
                U += 0.2 * torch.randn_like(U)
                if method == "ogd":
                    U.copy_(hs.functional.orthogonalize(U, "loewdin"))
    return model


def rotation_of(model: nn.Module, layer: int = 0) -> torch.Tensor:
    return model[layer].parametrizations.weight[0].map.dense()[0].detach().double()


def merged(tmp_path, *models: nn.Module, weights=None) -> nn.Module:
    folders = []
    for number, model in enumerate(models):
        folders.append(tmp_path / str(number))
        hs.orthogonal.save_adapter(model, folders[-1])
    return hs.orthogonal.load_adapter(base(), hs.orthogonal.merge(folders, weights))


@pytest.mark.parametrize("method", ["cayley", "exponential", "loewdin", "gram_schmidt", "ogd"])
def test_two_adapters_meet_on_the_path_between_them(tmp_path, method):
    a, b = turned(1, method), turned(2, method)
    A, B = rotation_of(a), rotation_of(b)
    expected = A @ torch.matrix_exp(0.25 * reference.rotation_logarithm(A.T @ B))
    result = merged(tmp_path, a, b, weights=[3, 1])
    close(rotation_of(result).float(), expected.float(), scale=3)
    assert hs.orthogonal.orthogonality_error(result) < 1e-5


def test_householder_starts_elsewhere_and_is_averaged_all_the_same(tmp_path):
    a, b = turned(1, "householder"), turned(2, "householder")
    A, B = rotation_of(a), rotation_of(b)
    expected = A @ torch.matrix_exp(0.5 * reference.rotation_logarithm(A.T @ B))
    close(rotation_of(merged(tmp_path, a, b)).float(), expected.float(), scale=10)


def test_three_adapters_minimize_the_sum_of_squared_angles(tmp_path):
    models = [turned(seed, blocks=2) for seed in (1, 2, 3)]
    result = rotation_of(merged(tmp_path, *models, weights=[1, 2, 3]))
    for part in (slice(0, 3), slice(3, 6)):
        R = [rotation_of(model)[part, part] for model in models]
        mean = reference.karcher_mean(R, [1 / 6, 1 / 3, 1 / 2])
        torch.testing.assert_close(result[part, part], mean, rtol=0, atol=2e-5)


def test_methods_may_differ_and_one_that_leaves_a_layer_alone_counts_as_the_identity(tmp_path):
    a, b = turned(1, "cayley", skip=()), turned(2, "exponential")
    result = merged(tmp_path, a, b)
    A, B = rotation_of(a), rotation_of(b)
    middle = A @ torch.matrix_exp(0.5 * reference.rotation_logarithm(A.T @ B))
    close(rotation_of(result).float(), middle.float(), scale=3)
    half = torch.matrix_exp(0.5 * reference.rotation_logarithm(rotation_of(a, 2)))
    close(rotation_of(result, 2).float(), half.float(), scale=3)


def test_one_adapter_is_its_own_mean_and_a_merged_one_can_be_saved(tmp_path):
    a = turned(1)
    close(rotation_of(merged(tmp_path, a)), rotation_of(a))
    hs.orthogonal.save_adapter(hs.orthogonal.merge([tmp_path / "0"]), tmp_path / "again")
    close(rotation_of(hs.orthogonal.load_adapter(base(), tmp_path / "again")), rotation_of(a))


def test_other_values_are_averaged_and_lengths_as_logarithms(tmp_path):
    models = []
    for seed, bias, length in ((1, 0.0, 1.0), (2, 2.0, 4.0)):
        model = turned(seed, learn_lengths=True)
        model[2].requires_grad_(True)
        with torch.no_grad():
            model[2].bias.fill_(bias)
            model[0].parametrizations.weight[0].lengths.fill_(length)
        models.append(model)
        hs.orthogonal.save_adapter(model, tmp_path / str(seed))
    values = hs.orthogonal.merge([tmp_path / "1", tmp_path / "2"]).values
    close(values["2.bias"], torch.ones(2))
    (lengths,) = (v for name, v in values.items() if name.endswith("lengths"))
    close(lengths, torch.full_like(lengths, 2.0))


def test_what_has_no_mean_is_refused(tmp_path):
    def adapter(name, model):
        hs.orthogonal.save_adapter(model, tmp_path / name)
        return read(tmp_path / name)

    a = adapter("a", turned(1))
    trains_head = turned(2)
    trains_head[2].requires_grad_(True)
    other_base = turned(1)
    other_base[0].parametrizations.weight.original.data += 1
    cases = {
        "differ in their options": adapter("b", turned(2, blocks=2)),
        "makes no rotations": adapter("c", turned(2, "lower_triangular")),
        "only 1 of 2 adapters hold 2.bias": adapter("d", trains_head),
        "different bases: 1 of": adapter("e", other_base),
    }
    for match, other in cases.items():
        other.base = other.base if "bases" in match else a.base
        with pytest.raises(ValueError, match=match):
            hs.orthogonal.merge([a, other])
    with pytest.raises(ValueError, match="at least one adapter"):
        hs.orthogonal.merge([])
    with pytest.raises(ValueError, match="list of folders"):
        hs.orthogonal.merge(tmp_path / "a")
    with pytest.raises(ValueError, match="expected 2 weights"):
        hs.orthogonal.merge([a, a], weights=[1.0])
    with pytest.raises(ValueError, match="not negative"):
        hs.orthogonal.merge([a, a], weights=[1.0, -1.0])
