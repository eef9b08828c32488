"""Neurons that are not the base's any more travel with the adapter; lengths stay positive."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal.adapters import read
from tolerances import close

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(7))


def base() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).requires_grad_(False)


def rotated(**options) -> nn.Module:
    return hs.orthogonal.rotate(base(), **{"start": "identity", **options})


def moved(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"side": "input", "blocks": 2},
        {"both_sides": True},
        {"method": "householder"},
        {"learn_lengths": True},
        {"structure": "reflections"},
    ],
    ids=str,
)
def test_an_adapter_after_a_restart_fits_the_base(tmp_path, options):
    model = moved(hs.orthogonal.restart(moved(rotated(**options))))
    hs.orthogonal.save_adapter(model, tmp_path / "one")
    plain = hs.orthogonal.load_adapter(base(), tmp_path / "one")
    assert torch.equal(plain(X), model(X))
    hs.orthogonal.save_adapter(plain, tmp_path / "two")  # again, from what was loaded
    assert torch.equal(hs.orthogonal.load_adapter(base(), tmp_path / "two")(X), model(X))
    # the state dict knows of it, too
    resumed = rotated(**options)
    resumed.load_state_dict(model.state_dict())
    hs.orthogonal.save_adapter(resumed, tmp_path / "three")
    assert torch.equal(hs.orthogonal.load_adapter(base(), tmp_path / "three")(X), model(X))
    # and goes back
    hs.orthogonal.load_adapter(plain, tmp_path / "one", task="restarted")
    other = base()
    hs.orthogonal.load_adapter(other, tmp_path / "one", task="restarted")
    close(hs.orthogonal.use_task(other, "default")(X), base()(X))


@pytest.mark.parametrize("options", [{"start": "random"}, {"normalize": True}], ids=str)
def test_an_adapter_after_a_random_start_or_normalization_fits_the_base(tmp_path, options):
    model = moved(rotated(**options))
    hs.orthogonal.save_adapter(model, tmp_path)
    assert torch.equal(hs.orthogonal.load_adapter(base(), tmp_path)(X), model(X))


@pytest.mark.parametrize("side", ["weight", "input"])
def test_plain_weights_under_a_moved_rotation(tmp_path, side):
    model = moved(rotated(side=side))
    model.load_state_dict(base().state_dict())
    close(model(X), base()(X))
    hs.orthogonal.save_adapter(model, tmp_path)
    assert torch.equal(hs.orthogonal.load_adapter(base(), tmp_path)(X), model(X))
    fresh = rotated(side=side)
    fresh.load_state_dict(base().state_dict())
    hs.orthogonal.save_adapter(fresh, tmp_path)
    assert not read(tmp_path).values  # the neurons are those of the base


def test_states_without_the_entry_are_read():
    model = moved(rotated())
    old = {k: v for k, v in model.state_dict().items() if not k.endswith("moved_neurons")}
    again = rotated()
    again.load_state_dict(old)
    assert torch.equal(again(X), model(X))


def test_restarted_adapters_have_no_mean_and_no_files_of_peft(tmp_path):
    model = hs.orthogonal.restart(moved(rotated(side="input")))
    hs.orthogonal.save_adapter(model, tmp_path)
    with pytest.raises(ValueError, match="neurons of its own, 0.weight"):
        hs.orthogonal.merge([tmp_path, tmp_path])
    with pytest.raises(ValueError, match=r"not those of the base any more.*fold\(model\)"):
        hs.orthogonal.save_adapter(model, tmp_path / "peft", format="peft")


def test_learned_lengths_stay_positive_and_do_not_decay():
    model = rotated(learn_lengths=True)
    rotation = model[0].parametrizations.weight[0]
    before = model[0].weight.clone()
    with torch.no_grad():
        rotation.lengths[:4] *= -2.0  # a step too far
    after = model[0].weight
    close(after.norm(dim=1)[:4], 2 * before.norm(dim=1)[:4])
    cosines = [
        nn.functional.cosine_similarity(w[:, None], w[None], dim=-1) for w in (before, after)
    ]
    close(*cosines)
    groups = {g["name"]: g for g in hs.orthogonal.parameter_groups(model, 0.1)}
    assert any(p is rotation.lengths for p in groups["undecayed"]["params"])
    assert groups["undecayed"]["weight_decay"] == 0
    assert hs.orthogonal.report(model).parameters == 8 * 7 // 2 + 16
    plan = hs.orthogonal.plan_rotation(base(), start="identity", learn_lengths=True)
    assert plan.layers[0].trained == 8 * 7 // 2 + 16


@pytest.mark.parametrize("first", ["weight", "input"])
@pytest.mark.parametrize("second", ["weight", "input", "auto"])
def test_a_layer_is_rotated_once(first, second):
    model = rotated(side=first)
    with pytest.raises(ValueError, match=r"already: fold\(model\)"):
        hs.orthogonal.rotate(model, side=second, start="identity")
