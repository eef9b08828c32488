"""Files of Hugging Face models: folded weights out, plain weights in."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hypersphere as hs
from tolerances import close

pytest.importorskip("transformers")
from tiny_models import MODELS, classifier, logits, make, move


def rotated(name: str, **options) -> nn.Module:
    model = make(name).requires_grad_(False)
    classifier(model).requires_grad_(True)
    return hs.orthogonal.rotate(model, start="identity", **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_rotated_model_is_saved_folded_and_read_by_from_pretrained(tmp_path, name):
    model = move(rotated(name))
    moved = (logits(model, name) - logits(make(name), name)).abs().max()
    assert moved > 1e-3
    model.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    close(logits(again.eval(), name), logits(model, name), scale=10)
    assert type(again) is type(make(name))
    # the model itself stays rotated
    assert hs.orthogonal.orthogonality_error(model) < 1e-5


def test_copies_pickles_and_given_states_are_folded_too(tmp_path):
    model = move(rotated("bert"))
    twin = move(copy.deepcopy(model))
    twin.save_pretrained(tmp_path / "twin")
    read = type(model).from_pretrained(tmp_path / "twin").eval()
    close(logits(read, "bert"), logits(twin, "bert"), scale=10)
    assert (logits(read, "bert") - logits(model, "bert")).abs().max() > 1e-3
    thawed = pickle.loads(pickle.dumps(hs.orthogonal.folded_state(model)))
    assert list(thawed) == list(make("bert").state_dict())
    model.save_pretrained(tmp_path / "given", state_dict=model.state_dict())
    close(logits(type(model).from_pretrained(tmp_path / "given").eval(), "bert"),
          logits(model, "bert"), scale=10)  # fmt: skip
    hs.orthogonal.fold(model).save_pretrained(tmp_path / "folded")
    close(logits(type(model).from_pretrained(tmp_path / "folded").eval(), "bert"),
          logits(model, "bert"), scale=10)  # fmt: skip


def test_a_model_of_which_a_part_is_rotated(tmp_path):
    model = make("bert")
    hs.orthogonal.rotate(model.bert.encoder.layer[0], start="identity", blocks=2, skip=())
    hs.orthogonal.rotate(model.bert.encoder.layer[1], start="identity", side="weight", skip=())
    move(model)
    keys = list(model.state_dict())
    assert any("parametrizations" in key for key in keys)  # for all others, the model's own state
    model.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    close(logits(again.eval(), "bert"), logits(model, "bert"), scale=10)
    assert list(model.state_dict()) == keys


def test_a_state_is_folded_after_an_adapter_was_loaded(tmp_path):
    model = make("bert").requires_grad_(False)
    plain = copy.deepcopy(model)
    move(hs.orthogonal.rotate(model, start="identity", blocks=4))
    hs.orthogonal.save_adapter(model, tmp_path / "adapter")
    hs.orthogonal.load_adapter(plain, tmp_path / "adapter")
    plain.save_pretrained(tmp_path / "whole", state_dict=plain.state_dict())
    again = type(model).from_pretrained(tmp_path / "whole")
    close(logits(again.eval(), "bert"), logits(model, "bert"), scale=10)


def test_a_distributed_checkpoint_of_rotations_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"fold\(model\) first.*save_adapter"):
        rotated("bert").save_pretrained(tmp_path, distributed_checkpoint=True)


def test_plain_weights_become_the_neurons_of_a_rotated_model():
    plain = move(make("bert"))
    model = move(rotated("bert"))
    before = {k: v.clone() for k, v in model.state_dict().items() if k.endswith(".U")}
    model.load_state_dict(plain.state_dict())  # strict
    close(logits(model, "bert"), logits(plain, "bert"), scale=10)
    assert before and all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    close(logits(hs.orthogonal.fold(model), "bert"), logits(plain, "bert"), scale=10)


def test_a_plain_weight_of_another_shape_is_refused_by_torch():
    layer = hs.orthogonal.rotate(nn.Linear(6, 4))
    with pytest.raises(RuntimeError, match=r"Missing key.*original|Unexpected key.*weight"):
        layer.load_state_dict(nn.Linear(5, 4).state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_adapters_over_a_model_of_hugging_face(tmp_path, name):
    model = move(rotated(name))
    hs.orthogonal.save_adapter(model, tmp_path)
    again = hs.orthogonal.load_adapter(make(name), tmp_path)
    assert torch.equal(logits(again, name), logits(model, name))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert size < 4 * trained + 60_000


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_the_files_of_peft_are_exchanged_on_real_architectures(tmp_path, name):
    """GPT-2 is left out: PEFT's OFT does not know its Conv1D."""
    peft = pytest.importorskip("peft")
    head = "score" if name == "llama" else "classifier"
    model = make(name).requires_grad_(False)
    hs.orthogonal.rotate(model, start="identity", blocks=4, skip=_not_attention(model))
    getattr(model, head).requires_grad_(True)
    move(model)
    hs.orthogonal.save_adapter(model, tmp_path, format="peft")
    theirs = peft.PeftModel.from_pretrained(make(name), str(tmp_path)).eval()
    assert (logits(theirs, name) - logits(model, name)).abs().max() < 1e-5
    again = hs.orthogonal.load_adapter(make(name), tmp_path)
    assert torch.equal(logits(again, name), logits(model, name))


def _not_attention(model: nn.Module) -> tuple[str, ...]:
    """Names of linear layers and convolutions outside of attention."""
    kinds = (nn.Linear, nn.Conv2d)
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, kinds) and "attention" not in name and "self_attn" not in name
    )
