"""Arguments that cannot be meant as given: refused, or followed with a warning, in a sentence."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.integrations import TrainerOptimizer, rotation_optimizer
from tolerances import close

rotate = hs.orthogonal.rotate


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 2), nn.Flatten(), nn.Linear(8, 16), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": "input", "skip": ("0",)}, "start='random' changes the weight; pass start='iden"),
        ({"side": "input", "start": "identity"}, "0: side='input' is for.*name it in skip, or use"),
        ({"blocks": 4.0}, r"blocks expects a whole number; got 4\.0"),
        ({"blocks": "4"}, "blocks expects a whole number; got '4'"),
        ({"blocks": True}, "blocks expects a whole number; got True"),
        ({"rank": 4}, "rank counts the reflections of structure='reflections'"),
        ({"structure": "butterfly", "blocks": 4, "factors": 9}, "no layer has 9 factors"),
        ({"targets": []}, "targets is empty"),
        ({"targets": "linear"}, r"a regular expression for whole names.*targets=\['linear'\]"),
        ({"targets": "*.attn"}, "no valid one"),
    ],
    ids=str,
)
def test_refused(options, words):
    with pytest.raises(ValueError, match=words):
        rotate(net(), **options)


def test_blocks_that_do_not_divide_are_named():
    with pytest.warns(UserWarning, match=r"2 \(1 for blocks=3, which does not divide 8\)"):
        rotate(net(), start="identity", blocks=3, skip=("0", "3"))
    plan = hs.orthogonal.describe(net(), start="identity", blocks=3, verbose=False)
    assert "1 for blocks=3, which does not divide 8" in str(plan)
    rotate(net(), start="identity", blocks=4)  # three colors: no warning


def test_the_nearest_name_does_not_look_at_case():
    with pytest.raises(ValueError, match="did you mean 'adamw'"):
        rotation_optimizer(rotate(net(), start="identity"), "adamW")


def test_the_rate_of_the_trainer_does_not_arrive():
    with pytest.raises(ValueError, match="TrainerOptimizer expects a rate"):
        TrainerOptimizer()(rotate(net(), start="identity"))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expects a folder"):
        hs.orthogonal.save_adapter(rotate(net(), start="identity"), tmp_path / "file")


OPTIONS = [{}, {"side": "input"}, {"structure": "reflections"}, {"learn_lengths": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("empty", [True, False])
def test_a_model_that_was_rotated_on_the_meta_device_reads_plain_weights(options, empty, tmp_path):
    options = {"start": "identity", "skip": ("0", "3"), **options}
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 2), nn.Flatten(), nn.Linear(8, 16), nn.Linear(16, 3))
    rotate(model, **options)
    with pytest.raises(ValueError, match="on the meta device"):
        rotation_optimizer(model)
    with pytest.raises(ValueError, match="on the meta device"):
        hs.orthogonal.save_adapter(model, tmp_path)
    if empty:
        model.to_empty(device="cpu")
    model.load_state_dict(net().state_dict(), assign=not empty)
    x = torch.randn(4, 3, 2, 2)
    close(model(x), net()(x))
    assert not any(p.is_meta for p in model.parameters())
    rotation_optimizer(model)
    hs.orthogonal.save_adapter(model.requires_grad_(False), tmp_path)
    close(hs.orthogonal.load_adapter(net(), tmp_path)(x), net()(x))


def test_a_4_bit_base_that_has_run_takes_its_adapter(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def quantized() -> nn.Module:
        torch.manual_seed(0)
        plain = nn.Linear(64, 64)
        layer = bitsandbytes.nn.Linear4bit(64, 64, quant_type="nf4")
        layer.load_state_dict(plain.state_dict())
        return nn.Sequential(layer.to("cpu"), nn.Linear(64, 3)).requires_grad_(False).eval()

    model = rotate(quantized(), start="identity", blocks=4)
    hs.orthogonal.save_adapter(model, tmp_path)
    base = quantized()
    with torch.no_grad():
        base(torch.randn(2, 64))
    hs.orthogonal.load_adapter(base, tmp_path)
