"""Adapters: only what was trained, several over one base, refused where they do not belong."""

import copy
import json

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal.adapters import read
from tolerances import close


def base(seed: int = 0) -> nn.Module:
    """A small network of every kind of layer that a rotation knows, frozen."""
    torch.manual_seed(seed)
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(4, 6, 3, groups=2))
    net.add_module("norm", nn.BatchNorm2d(6))
    net.add_module("flat", nn.Flatten())
    net.add_module("hidden", nn.Linear(24, 8))
    net.add_module("head", nn.Linear(8, 3))
    return net.requires_grad_(False)


def trained(seed: int = 1, head: bool = True, steps: int = 3, **options) -> nn.Module:
    """The base, rotated and trained for some steps on noise."""
    model = hs.orthogonal.rotate(base(), start="identity", **options)
    model.head.requires_grad_(head)
    torch.manual_seed(seed)
    groups = hs.orthogonal.parameter_groups(model, lr=0.3)
    ogd = options.get("method") == "ogd"
    optimizer = hs.orthogonal.OGD(groups) if ogd else torch.optim.SGD(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = torch.randn(8, 4, 4, 4), torch.randint(3, (8,))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


X = torch.randn(5, 4, 4, 4, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"blocks": 2},
        {"blocks": 2, "share_blocks": True},
        {"method": "exponential"},
        {"method": "loewdin"},
        {"method": "householder"},
        {"method": "ogd"},
        {"method": "banded", "bandwidth": 2},
        {"learn_lengths": True},
        {"learn_neurons": True},
        {"blocks": 2, "side": "input", "skip": ("conv", "head")},
        {"blocks": 2, "structure": "butterfly"},
        {"structure": "reflections", "rank": 4},
        {"both_sides": True},
        {"both_sides": True, "blocks": 8, "method": "householder"},
    ],
    ids=str,
)
def test_an_adapter_gives_a_plain_or_rotated_base_the_same_outputs(tmp_path, options):
    model = trained(**options)
    hs.orthogonal.save_adapter(model, tmp_path)
    plain = hs.orthogonal.load_adapter(base().eval(), tmp_path)
    assert torch.equal(plain(X), model(X))
    rotated = hs.orthogonal.rotate(base(), start="identity", **options).eval()
    assert torch.equal(hs.orthogonal.load_adapter(rotated, tmp_path)(X), model(X))
    folded = hs.orthogonal.fold(plain)
    close(folded(X), model(X), scale=3)


def test_only_what_was_trained_is_stored(tmp_path):
    model = trained()
    hs.orthogonal.save_adapter(model, tmp_path)
    adapter = read(tmp_path)
    assert sorted(adapter.layers) == ["conv.weight", "hidden.weight"]
    statistics = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(adapter.values) == {"head.weight", "head.bias", *statistics}
    assert set(adapter.base) == {
        "conv.weight", "conv.bias", "norm.weight", "norm.bias", "hidden.weight", "hidden.bias",
    }  # fmt: skip
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_several_adapters_over_one_base_are_switched_with_everything_they_brought(tmp_path):
    outputs, plain = {}, base().eval()
    before = plain(X)
    settings = {
        "birds": {"blocks": 2},
        "ships": {"method": "exponential", "seed": 2},
        "norms": {"seed": 3, "head": False},
    }
    for name, options in settings.items():
        model = trained(**options)
        outputs[name] = model(X)
        hs.orthogonal.save_adapter(model, tmp_path / name)
    model = base().eval()
    for name in outputs:
        hs.orthogonal.load_adapter(model, tmp_path / name, task=name)
    for name in [*outputs, *reversed(outputs)]:
        assert torch.equal(hs.orthogonal.use_task(model, name)(X), outputs[name]), name
    close(hs.orthogonal.use_task(model, "default")(X), before)
    twin = copy.deepcopy(model)
    assert torch.equal(hs.orthogonal.use_task(twin, "ships")(X), outputs["ships"])
    close(model(X), before)


def test_adapters_may_turn_different_layers(tmp_path):
    first = hs.orthogonal.rotate(base(), start="identity", skip=("conv", "head"))
    second = hs.orthogonal.rotate(base(), start="identity", skip=("hidden", "head"))
    outputs = {}
    for name, model in {"first": first, "second": second}.items():
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.1)
        outputs[name] = model.eval()(X)
        hs.orthogonal.save_adapter(model, tmp_path / name)
    model = base().eval()
    for name in outputs:
        hs.orthogonal.load_adapter(model, tmp_path / name, task=name)
    for name, expected in outputs.items():
        close(hs.orthogonal.use_task(model, name)(X), expected)


def test_what_a_task_trains_is_kept_when_another_one_is_used(tmp_path):
    hs.orthogonal.save_adapter(trained(), tmp_path)
    model = hs.orthogonal.load_adapter(base().eval(), tmp_path, task="a")
    hs.orthogonal.load_adapter(model, tmp_path, task="b")
    with torch.no_grad():
        model.head.bias.add_(1.0)
    after = model(X)
    other = hs.orthogonal.use_task(model, "a")(X)
    close(after, other + 1.0)
    close(hs.orthogonal.use_task(model, "b")(X), after)


def test_the_side_of_a_layer_may_change(tmp_path):
    """What was trained on the inputs turns the weights, and the other way around."""
    options = {"blocks": 4, "skip": ("conv", "head")}
    model = trained(side="input", **options)
    hs.orthogonal.save_adapter(model, tmp_path)
    assert read(tmp_path).layers["hidden.weight"].options["side"] == "input"
    weights = hs.orthogonal.rotate(base(), start="identity", side="weight", **options).eval()
    close(hs.orthogonal.load_adapter(weights, tmp_path)(X), model(X), scale=3)
    hs.orthogonal.save_adapter(weights, tmp_path)
    inputs = hs.orthogonal.rotate(base(), start="identity", side="input", **options).eval()
    assert torch.equal(hs.orthogonal.load_adapter(inputs, tmp_path)(X), model(X))


def test_the_optimizer_keeps_its_hold_on_parameters(tmp_path):
    model = trained()
    hs.orthogonal.save_adapter(model, tmp_path)
    before = {name: id(p) for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.zero_()
    hs.orthogonal.load_adapter(model, tmp_path)
    assert before == {name: id(p) for name, p in model.named_parameters()}
    assert torch.equal(model(X), trained()(X))


def test_a_model_in_bfloat16(tmp_path):
    model = hs.orthogonal.rotate(base().bfloat16(), start="identity", skip=("head", "conv")).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(std=0.1)
    hs.orthogonal.save_adapter(model, tmp_path)
    other = hs.orthogonal.load_adapter(base().bfloat16().eval(), tmp_path)
    close(other(X.bfloat16()), model(X.bfloat16()))
    with pytest.raises(ValueError, match="trained over another base; 8 of 8 weights differ"):
        hs.orthogonal.load_adapter(base(), tmp_path)


def test_a_model_in_float64(tmp_path):
    options = {"start": "identity", "skip": ("head", "conv")}
    model = hs.orthogonal.rotate(base().double(), **options).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(std=0.1)
    hs.orthogonal.save_adapter(model, tmp_path)
    other = hs.orthogonal.load_adapter(base().double().eval(), tmp_path)
    assert torch.equal(other(X.double()), model(X.double()))


def refused(model: nn.Module, folder, match: str, **options) -> None:
    """Loading raises, and the model is as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        hs.orthogonal.load_adapter(model, folder, **options)
    after = model.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert torch.allclose(after[name], value, rtol=0, atol=0, equal_nan=True), name


def test_another_base_is_refused(tmp_path):
    hs.orthogonal.save_adapter(trained(), tmp_path)
    refused(base(seed=5), tmp_path, "trained over another base; 4 of 6 weights differ: conv.weight")
    other = base()
    with torch.no_grad():
        other.hidden.weight[0, 0] += 1e-6
    refused(other, tmp_path, "1 of 6 weights differ: hidden.weight.*check_base=False")
    hs.orthogonal.load_adapter(other.eval(), tmp_path, check_base=False)
    close(other(X), trained()(X), scale=10)
    randomly = hs.orthogonal.rotate(base())
    refused(randomly, tmp_path, "2 of 6 weights differ")


def test_another_network_is_refused(tmp_path):
    hs.orthogonal.save_adapter(trained(), tmp_path)
    refused(nn.Sequential(nn.Linear(3, 3)), tmp_path, "turns conv.weight, which Sequential lacks")
    wider = base()
    wider.hidden = nn.Linear(25, 8)
    refused(wider, tmp_path, "hidden.weight", check_base=False)
    other_head = base()
    other_head.head = nn.Linear(8, 4)
    refused(other_head, tmp_path, r"head.bias is \(4,\) here, \(3,\) there", check_base=False)
    refused(base(), tmp_path, "task name", task="a.b")
    refused(base(), tmp_path / "nothing", "no adapter in .*nothing: expected adapter.json")
    householder = hs.orthogonal.rotate(base(), "householder", start="identity")
    refused(householder, tmp_path, "load it into a plain model", task="second")


def test_damaged_files_are_refused(tmp_path):
    hs.orthogonal.save_adapter(trained(), tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    record = tmp_path / "adapter.json"
    text, content = record.read_text(), tensors.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 25)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        tensors.write_bytes(bytes(damaged))
        refused(base(), tmp_path, "damaged|cannot be read|is not")
    tensors.write_bytes(content[: len(content) // 2])
    refused(base(), tmp_path, "damaged|cannot be read|is not")
    tensors.write_bytes(content)
    record.write_text(text.replace('"blocks": 1', '"blocks": 2', 1))
    refused(base(), tmp_path, "changed after it was written")
    record.write_text(text[: len(text) // 2])
    refused(base(), tmp_path, "is not JSON")
    for change in ({"format": "x"}, {"layers": []}, {"layers": {"a": {}}}, {"base": 3}):
        entries = {**json.loads(text), **change}
        del entries["checksum"]
        record.write_text(json.dumps(entries))
        refused(base(), tmp_path, "damaged|no adapter|knows nothing")
    entries = json.loads(text)
    del entries["checksum"]
    entries["tensors"]["file"] = "../" + tensors.name
    (tmp_path.parent / tensors.name).write_bytes(content)
    tensors.unlink()
    record.write_text(json.dumps(entries))
    refused(base(), tmp_path, "is not there")


def test_saving_over_an_adapter_is_one_operation(tmp_path, monkeypatch):
    """A process that dies between the two files leaves the adapter that was there."""
    from hypersphere.orthogonal.adapters import adapter_files

    hs.orthogonal.save_adapter(trained(), tmp_path)
    real = adapter_files.replace_file

    def dies_at_the_record(path, content):
        if path.name == "adapter.json":
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(adapter_files, "replace_file", dies_at_the_record)
    with pytest.raises(KeyboardInterrupt):
        hs.orthogonal.save_adapter(trained(seed=9), tmp_path)
    assert torch.equal(hs.orthogonal.load_adapter(base().eval(), tmp_path)(X), trained()(X))
    monkeypatch.undo()
    hs.orthogonal.save_adapter(trained(seed=9), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(hs.orthogonal.load_adapter(base().eval(), tmp_path)(X), trained(9)(X))


def test_what_cannot_be_saved_says_so(tmp_path):
    with pytest.raises(ValueError, match="no rotated layer"):
        hs.orthogonal.save_adapter(base(), tmp_path)
    own = hs.orthogonal.rotate(base(), lambda rows: rows, start="identity")
    with pytest.raises(ValueError, match="function of your own"):
        hs.orthogonal.save_adapter(own, tmp_path)
    with pytest.raises(ValueError, match="unknown format 'pefd'.*did you mean 'peft'"):
        hs.orthogonal.save_adapter(trained(), tmp_path, format="pefd")
    mixed = trained()
    hs.orthogonal.add_task(mixed, "second")
    mixed.hidden.parametrizations.weight[0].use_task("second")
    with pytest.raises(ValueError, match="different tasks"):
        hs.orthogonal.save_adapter(mixed, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_root_layer_attention_and_a_compiled_model(tmp_path):
    layer = nn.Linear(6, 4).requires_grad_(False)
    plain = copy.deepcopy(layer)
    hs.orthogonal.rotate(layer, start="identity").parametrizations.weight[0].map.U.data += 0.1
    hs.orthogonal.save_adapter(layer, tmp_path / "root")
    assert torch.equal(hs.orthogonal.load_adapter(plain, tmp_path / "root").weight, layer.weight)
    attention = nn.MultiheadAttention(8, 2).requires_grad_(False).eval()
    plain = copy.deepcopy(attention)
    hs.orthogonal.rotate(attention, start="identity", skip=("out_proj",))
    with torch.no_grad():
        for p in attention.parameters():
            if p.requires_grad:
                p.normal_(std=0.1)
    wrapped = torch.compile(attention, backend="eager")
    hs.orthogonal.save_adapter(wrapped, tmp_path / "attention")
    hs.orthogonal.load_adapter(plain, tmp_path / "attention")
    assert list(read(tmp_path / "attention").layers) == ["in_proj_weight"]
    assert torch.equal(plain.in_proj_weight, attention.in_proj_weight)


def quantized(kind: str) -> nn.Module:
    """A network whose middle layer another library has quantized."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 3))
    if kind == "torchao":
        torchao = pytest.importorskip("torchao.quantization")
        torchao.quantize_(nn.Sequential(net[2]), torchao.Int8WeightOnlyConfig())
        return net.requires_grad_(False)
    bnb = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear4bit(64, 64)
    layer.load_state_dict(net[2].state_dict())
    net[2] = layer.to("cpu")
    return net.requires_grad_(False)


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("kind", ["4bit", "torchao"])
def test_adapters_over_a_quantized_base(tmp_path, kind):
    model = hs.orthogonal.rotate(quantized(kind), start="identity", blocks=8)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(std=0.1)
    x = torch.randn(4, 64)
    hs.orthogonal.save_adapter(model, tmp_path)
    again = quantized(kind)
    assert (again(x) - model(x)).abs().max() > 1e-2
    hs.orthogonal.load_adapter(again, tmp_path)
    close(again(x), model(x))
    other = quantized(kind)
    other[0].weight.data += 1
    with pytest.raises(ValueError, match="another base"):
        hs.orthogonal.load_adapter(other, tmp_path)
    with pytest.raises(ValueError, match=r"the rotation of 2 cannot be multiplied .*save_adapter"):
        hs.orthogonal.folded_state(model)
