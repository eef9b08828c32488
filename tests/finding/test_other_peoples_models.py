"""Hugging Face, PEFT and quantized layers, each built from a tiny config."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.finding import find_layers
from hypersphere.orthogonal.rotation import rotations
from hypersphere.regularizers import MHE, find_neurons
from tolerances import close

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
COMMON = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def gpt2(cls="GPT2ForSequenceClassification"):
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=16, num_labels=3, **SIZES
    )
    return getattr(transformers, cls)(config).eval()


def bert():
    config = transformers.BertConfig(num_hidden_layers=2, num_labels=3, **COMMON, **SIZES)
    return transformers.BertForSequenceClassification(config).eval()


def llama():
    config = transformers.LlamaConfig(num_hidden_layers=2, **COMMON, **SIZES)
    return transformers.LlamaForCausalLM(config).eval()


def vit():
    config = transformers.ViTConfig(
        num_hidden_layers=2, image_size=16, patch_size=8, num_labels=3, **COMMON
    )
    return transformers.ViTForImageClassification(config).eval()


# (model, hidden layers, output layer, input)
MODELS = {
    "gpt2": (gpt2, 8, "score", {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]])}),
    "bert": (bert, 13, "classifier", {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]])}),
    "llama": (llama, 14, "lm_head", {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]])}),
    "vit": (vit, 13, "classifier", {"pixel_values": torch.zeros(2, 3, 16, 16) + 0.1}),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_layers_are_found_and_rotated(name):
    make, hidden, output, inputs = MODELS[name]
    model = make()
    findings = find_layers(model)
    assert sum(site.role == "hidden" for site in findings) == hidden
    assert [site.label for site in findings if site.role == "output"] == [output]
    assert len(find_neurons(model)) == hidden + 1
    before = model(**inputs).logits
    keys = list(model.state_dict())
    for options in ({"blocks": 4}, {"side": "weight"}, {"structure": "butterfly", "blocks": 4}):
        hs.orthogonal.rotate(model, start="identity", **options)
        assert len(list(rotations(model))) == hidden
        close(model(**inputs).logits, before, scale=3)
        with torch.no_grad():
            for *_, rotation in rotations(model):
                rotation.map.U.normal_(std=0.1)
        moved = model(**inputs).logits
        assert (moved - before).abs().max() > 1e-4
        moved.square().sum().backward()
        assert all(r.map.U.grad.abs().sum() > 0 for *_, r in rotations(model))
        hs.orthogonal.fold(model)
        assert list(model.state_dict()) == keys
        before = model(**inputs).logits
        close(before, moved, scale=10)


def test_mhe_sees_gpt2_and_the_tied_head_is_named():
    model = gpt2("GPT2LMHeadModel")
    report = hs.regularizers.MHE().report(model)
    assert [x.name for x in report][-1] == "lm_head"
    assert len(report.layers) == 9 and report.layers[0].dim == 16
    assert "wpe: Embedding(16, 16) left out, embeddings=False" in str(report)
    plan = hs.orthogonal.describe(model)
    assert "lm_head" not in [layer.site.label for layer in plan]
    assert len(plan.layers) == 8


def test_targets_are_those_of_peft():
    def labels(**options):
        return [x.site.label for x in hs.orthogonal.describe(llama(), **options)]

    assert labels(targets=["q_proj", "v_proj"]) == [
        f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qv"
    ]
    assert labels(targets=r".*\.0\.mlp\.(up|gate)_proj") == [
        "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
    ]  # fmt: skip
    assert labels(targets=["*.1.*_proj"], skip=["mlp"]) == [
        f"model.layers.1.self_attn.{p}_proj" for p in "qkvo"
    ]
    assert len(labels(targets="all-linear")) == 14
    assert labels(targets=["lm_head"]) == ["lm_head"]
    assert labels(targets=["embed_tokens"]) == ["model.embed_tokens"]
    with pytest.raises(ValueError, match="'q_porj', which is not a module; did you mean 'q_proj'"):
        labels(targets=["q_porj"])
    with pytest.raises(ValueError, match="no layer that can be rotated: .*RMSNorm"):
        labels(targets=["input_layernorm"])


def lora(model, **options):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], **options)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("dora", [False, True])
def test_lora_is_seen_as_the_effective_weight(dora):
    model = lora(bert(), use_dora=dora)
    query = next(m for n, m in model.named_modules() if n.endswith("layer.0.attention.self.query"))
    with torch.no_grad():
        query.lora_B["default"].weight.normal_()
        query.lora_A["default"].weight.normal_()
    findings = find_layers(model)
    assert not any("lora" in site.label or "base_layer" in site.label for site in findings)
    assert [s.label for s in findings if s.role == "output"] == [
        "base_model.model.classifier.modules_to_save.default"
    ]
    assert any("modules_to_save" in x.reason for x in findings.left_out)
    assert any(x.name.endswith("query.lora_A") for x in findings.left_out)
    assert len(findings.sites) == 14
    x = torch.randn(5, 16)
    site = next(s for s in findings if s.label.endswith("layer.0.attention.self.query"))
    close(x @ site.read().T + query.base_layer.bias, query(x), scale=10)
    base = next(s for s in find_layers(model, lora="base") if s.label == site.label)
    assert torch.equal(base.read(), query.base_layer.weight)
    MHE()(model).backward()
    assert query.lora_B["default"].weight.grad.abs().sum() > 0
    other = MHE()
    other.lora = "base"
    assert not torch.equal(other(model), MHE()(model))
    copy.deepcopy(model)


def test_rotate_takes_the_base_of_lora_and_leaves_copies():
    model = lora(bert())
    plan = hs.orthogonal.describe(model, start="identity", blocks=4)
    labels = [layer.site.label for layer in plan]
    assert len(labels) == 13 and not any("lora" in n or "classifier" in n for n in labels)
    assert "part of an adapter" not in str(plan)
    x = {"input_ids": torch.tensor([[3, 4, 5]])}
    before = model(**x).logits
    hs.orthogonal.rotate(model, start="identity", blocks=4)
    close(model(**x).logits, before, scale=3)
    converted = hs.layers.convert(lora(bert()), linear=True, verbose=False)
    names = [n for n, m in converted.named_modules() if isinstance(m, hs.layers.DecoupledLinear)]
    assert names and not any("lora" in n or "query" in n or "classifier" in n for n in names)


def quantized(kind):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    net.append(nn.Linear(64, 3))
    if kind == "torchao":
        torchao = pytest.importorskip("torchao.quantization")
        first = nn.Sequential(net[2])
        torchao.quantize_(first, torchao.Int8WeightOnlyConfig())
        return net
    bnb = pytest.importorskip("bitsandbytes")
    make = bnb.nn.Linear4bit if kind == "4bit" else bnb.nn.Linear8bitLt
    options = {} if kind == "4bit" else {"has_fp16_weights": False}
    layer = make(64, 64, **options)
    layer.load_state_dict(net[2].state_dict())
    net[2] = layer.to("cpu")
    return net


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("kind", ["4bit", "8bit", "torchao"])
def test_quantized_layers_turn_on_the_input_side(kind):
    net = quantized(kind)
    (site,) = [s for s in find_layers(net) if s.label == "2"]
    assert site.state == "quantized" and "quantized" in site.note
    assert [n.name for n in find_neurons(net)] == ["0", "4"]
    assert "its numbers are codes" in str(MHE().report(net))
    before = {k: v for k, v in net.state_dict().items() if isinstance(v, torch.Tensor)}
    with pytest.raises(ValueError, match="2 cannot be turned .quantized.*side='input'"):
        hs.orthogonal.rotate(net)
    assert list(net.state_dict()) == list(before) and not list(rotations(net))  # atomic
    x = torch.randn(4, 64)
    expected = net(x)
    hs.orthogonal.rotate(net, start="identity", blocks=8)
    assert {label: r.side for label, *_, r in rotations(net)} == {"0": "input", "2": "input"}
    close(net(x), expected, scale=10)
    groups = hs.orthogonal.parameter_groups(net, lr=0.1)
    rates = [g["lr"] for g in groups if g["name"] == "rotations"]
    assert len(rates) == 2 and max(rates) < 3 * min(rates)  # about equal neurons
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
    assert net(x).square().mean() < loss
    hs.orthogonal.report(net)
    with pytest.raises(ValueError, match="cannot fold into 2 .*quantized"):
        hs.orthogonal.fold(net)
    assert len(list(rotations(net))) == 2
