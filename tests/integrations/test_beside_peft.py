"""Rotations beside LoRA: what PEFT would merge or save wrongly is refused, the rest is right."""

import copy

import pytest
from torch import nn

import hypersphere as hs
from tolerances import close

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from tiny_models import logits, make, move  # noqa: E402


def lora(base: nn.Module) -> nn.Module:
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, lora_alpha=8)
    return peft.get_peft_model(base, settings).eval()


def both(**options) -> nn.Module:
    return move(hs.orthogonal.rotate(lora(make("llama")), start="identity", blocks=4, **options))


@pytest.mark.parametrize("side", ["weight", "input"])
def test_lora_is_merged_after_folding_only(side):
    model = both(side=side)
    before = logits(model, "llama")
    twin = copy.deepcopy(model)
    for merge in (twin.merge_and_unload, twin.merge_adapter):
        with pytest.raises(ValueError, match="fold first"):
            merge()
    close(logits(twin, "llama"), before)
    merged = hs.orthogonal.fold(twin).merge_and_unload()
    close(logits(merged, "llama"), before, scale=10)


def test_lora_around_a_rotated_model_is_guarded_by_its_optimizer():
    model = lora(hs.orthogonal.rotate(make("llama"), start="identity", blocks=4))
    with pytest.warns(UserWarning, match="rotations are frozen.*get_peft_model"):
        hs.integrations.rotation_optimizer(model)
    with pytest.raises(ValueError, match="fold first"):
        model.merge_and_unload()


def test_files_of_peft_without_the_rotations_are_refused(tmp_path):
    model = both()
    before = logits(model, "llama")
    with pytest.raises(ValueError, match=r"drops the rotations.*save_adapter.*fold\(model\)"):
        model.save_pretrained(tmp_path / "theirs")
    around = lora(hs.orthogonal.rotate(make("llama"), start="identity"))
    with pytest.raises(ValueError, match="drops the rotations"):
        around.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match="beside PEFT's own adapters"):
        hs.orthogonal.save_adapter(model, tmp_path / "peft", format="peft")
    hs.orthogonal.save_adapter(model, tmp_path / "ours")
    again = hs.orthogonal.load_adapter(lora(make("llama")), tmp_path / "ours")
    close(logits(again, "llama"), before)
    hs.orthogonal.fold(model).save_pretrained(tmp_path / "folded")
    assert (tmp_path / "folded" / "adapter_model.safetensors").exists()
