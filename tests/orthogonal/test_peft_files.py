"""PEFT's OFT files: read as PEFT computes them, written as PEFT reads them."""

import json
import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal.adapters import read

peft = pytest.importorskip("peft")


class Network(nn.Module):
    """Two linear layers to turn and a classifier to train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


X = torch.randn(5, 12, generator=torch.Generator().manual_seed(3))


def with_peft(exact: bool = True, size: float = 0.3, **options) -> nn.Module:
    """PEFT's OFT over the network, its rotations and classifier moved from their start."""
    config = peft.OFTConfig(
        target_modules=["first", "second"],
        modules_to_save=["head"],
        use_cayley_neumann=not exact,
        **({"oft_block_size": 4, "r": 0} | options),
    )
    model = peft.get_peft_model(Network(), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return model.eval()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"r": 4, "oft_block_size": 0},
        {"block_share": True},
        {"oft_block_size": 2},
        {"coft": True},
    ],
    ids=str,
)
def test_an_adapter_of_peft_is_read(tmp_path, options):
    theirs = with_peft(**options)
    expected = theirs(X)
    theirs.save_pretrained(tmp_path)
    ours = hs.orthogonal.load_adapter(Network(), tmp_path)
    assert distance(ours(X), expected) < 1e-5
    assert distance(ours(X), Network()(X)) > (1e-3 if not options.get("coft") else 1e-6)
    assert hs.orthogonal.orthogonality_error(ours) < 1e-5
    assert distance(hs.orthogonal.fold(ours)(X), expected) < 1e-5


@pytest.mark.parametrize("options", [{"blocks": 4}, {"blocks": 2, "share_blocks": True}], ids=str)
def test_an_adapter_is_written_for_peft(tmp_path, options):
    ours = hs.orthogonal.rotate(
        Network().requires_grad_(False), start="identity", skip=("head",), **options
    )
    ours.head.requires_grad_(True)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    hs.orthogonal.save_adapter(ours, tmp_path, format="peft")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = peft.PeftModel.from_pretrained(Network(), str(tmp_path)).eval()
    assert distance(theirs(X), ours(X)) < 1e-5
    assert distance(theirs.merge_and_unload()(X), ours(X)) < 1e-5
    again = hs.orthogonal.load_adapter(Network(), tmp_path)
    assert torch.equal(again(X), ours(X))


def test_from_peft_through_ours_and_back(tmp_path):
    theirs = with_peft()
    expected = theirs(X)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = Network().requires_grad_(False)
    hs.orthogonal.load_adapter(ours, tmp_path / "theirs")
    hs.orthogonal.save_adapter(ours, tmp_path / "back", format="peft")
    back = peft.PeftModel.from_pretrained(Network(), str(tmp_path / "back")).eval()
    assert torch.equal(back(X), expected)


def test_the_series_of_peft_is_read_as_the_rotation_it_stands_for(tmp_path):
    """Its sign is the opposite of the exact transform's, and it is orthogonal for small angles."""
    theirs = with_peft(exact=False, size=1e-3)
    theirs.save_pretrained(tmp_path / "small")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = hs.orthogonal.load_adapter(Network(), tmp_path / "small")
    assert distance(ours(X), theirs(X)) < 1e-5
    theirs = with_peft(exact=False, size=0.2)
    theirs.save_pretrained(tmp_path / "large")
    with pytest.warns(UserWarning, match=r"series of the Cayley transform, which is off by 0\.\d"):
        hs.orthogonal.load_adapter(Network(), tmp_path / "large")


def test_the_series_is_that_of_peft():
    from peft.tuners.oft.layer import OFTRotationModule

    from hypersphere.orthogonal.adapters.peft_files import _series

    numbers = 0.3 * torch.randn(2, 6)
    rows, columns = torch.triu_indices(4, 4, 1)
    S = torch.zeros(2, 4, 4)
    S[:, rows, columns] = numbers
    for terms in range(1, 8):
        module = OFTRotationModule(2, 6, 4, 8)
        theirs = module._cayley_batch(numbers, 4, True, terms)
        assert distance(_series(S - S.mT, terms), theirs) < 1e-6


def test_merging_adapters_of_peft(tmp_path):
    for name in ("a", "b"):
        with_peft().save_pretrained(tmp_path / name)
    merged = hs.orthogonal.merge([tmp_path / "a", tmp_path / "b"])
    ours = hs.orthogonal.load_adapter(Network(), merged)
    assert distance(ours(X), with_peft()(X)) < 1e-5


def test_what_the_files_cannot_hold_is_refused(tmp_path):
    def refused(match, prepare=None, **options):
        model = Network().requires_grad_(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocks that do not divide
            hs.orthogonal.rotate(model, start="identity", **{"skip": ("head",), **options})
        if prepare:
            prepare(model)
        with pytest.raises(ValueError, match=match):
            hs.orthogonal.save_adapter(model, tmp_path, format="peft")

    refused("method 'exponential'", method="exponential")
    refused("learned lengths", learn_lengths=True)
    refused("first.bias beside the rotation", lambda m: m.first.bias.requires_grad_(True))
    refused("head.bias was trained by itself", lambda m: m.head.bias.requires_grad_(True))
    refused("blocks of length", blocks=3)
    convolution = hs.orthogonal.rotate(nn.Conv2d(4, 4, 3).requires_grad_(False), start="identity")
    with pytest.raises(ValueError, match="class ParametrizedConv2d|class Conv2d"):
        hs.orthogonal.save_adapter(convolution, tmp_path, format="peft")
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_oft_adapter_are_refused(tmp_path):
    with_peft().save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "peft_type": "LORA"}))
    with pytest.raises(ValueError, match="no OFT adapter: peft_type is 'LORA'"):
        hs.orthogonal.load_adapter(Network(), tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="no OFT adapter"):
        hs.orthogonal.load_adapter(Network(), tmp_path)
    path.write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="adapter_model.safetensors"):
        hs.orthogonal.load_adapter(Network(), tmp_path)
    with_peft(block_share=True).save_pretrained(tmp_path / "shared")
    with pytest.raises(ValueError, match="the model is needed"):
        read(tmp_path / "shared")


def test_convolutions_are_refused_because_peft_is_wrong_there(tmp_path):
    base = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(2, 4, 6, 6)
    before = base(x).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.OFTConfig(target_modules=["0"], oft_block_size=4, r=0)
        theirs = peft.get_peft_model(base, config)
    assert distance(theirs(x), before) > 0.5 * float(before.abs().max())  # at the identity
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="on convolutions PEFT's forward pass is not"):
        hs.orthogonal.load_adapter(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1)), tmp_path)


def test_the_series_of_peft_is_not_orthogonal():
    """The figure of docs/finetuning.md, from PEFT's own code."""
    from peft.tuners.oft.layer import OFTRotationModule

    R = OFTRotationModule(1, 1, 2, 2)._cayley_batch(torch.tensor([[0.5]]), 2, True, 5)[0]
    assert abs(distance(R.T @ R, torch.eye(2)) - 0.12) < 0.005
