"""Tiny models of Hugging Face, built from their configs: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, num_labels=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2ForSequenceClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=16, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16, num_labels=3,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForSequenceClassification(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=8, patch_size=4, num_channels=3, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2, "bert": bert, "llama": llama, "vit": vit,
}  # fmt: skip


def make(name: str) -> nn.Module:
    """A model with the same weights at every call, in evaluation mode."""
    torch.manual_seed(0)
    return MODELS[name]().eval()


def classifier(model: nn.Module) -> nn.Module:
    """The layer that gives the logits."""
    return model.score if hasattr(model, "score") else model.classifier


def inputs(name: str, count: int = 4, seed: int = 0) -> dict[str, Tensor]:
    """A batch with labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    if name == "vit":
        pixels = torch.randn(count, 3, 8, 8, generator=generator)
        return {"pixel_values": pixels, "labels": labels}
    tokens = torch.randint(1, 40, (count, 6), generator=generator)
    return {"input_ids": tokens, "labels": labels}


def examples(name: str, count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """A data set: a list of single samples."""
    batch = inputs(name, count, seed)
    return [{key: value[i] for key, value in batch.items()} for i in range(count)]


def logits(model: nn.Module, name: str) -> Tensor:
    """What the model gives for the first batch."""
    with torch.no_grad():
        return model(**inputs(name)).logits


def move(model: nn.Module, size: float = 0.1) -> nn.Module:
    """Change everything that is trained, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return model
