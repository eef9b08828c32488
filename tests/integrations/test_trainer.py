"""Hugging Face's Trainer over rotated models: groups, OGD, checkpointing, resuming, the best."""

import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.integrations import RotationCallback, TrainerOptimizer, rotation_optimizer
from tolerances import close

transformers = pytest.importorskip("transformers")
from tiny_models import MODELS, classifier, examples, logits, make  # noqa: E402


def rotated(name: str = "bert", method: str = "cayley", **options) -> nn.Module:
    model = make(name).requires_grad_(False)
    classifier(model).requires_grad_(True)
    return hs.orthogonal.rotate(model, method, start="identity", **options)


def trainer(model: nn.Module, folder, name: str = "bert", **settings):
    """A quiet Trainer over sixteen samples in batches of four, with our optimizer and callback."""
    optimizer = settings.pop("optimizer", {"lr": 3e-3, "weight_decay": 0.01})
    callbacks = settings.pop("callbacks", [RotationCallback()])
    defaults = {
        "per_device_train_batch_size": 4, "max_steps": 6, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True,
        "seed": 3, "dataloader_pin_memory": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of transformers' own making
        return transformers.Trainer(
            model,
            transformers.TrainingArguments(str(folder), **{**defaults, **settings}),
            train_dataset=examples(name, 16),
            eval_dataset=examples(name, 8, seed=1),
            optimizer_cls_and_kwargs=(TrainerOptimizer, optimizer),
            callbacks=callbacks,
        )


def run(it, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return it.train(**options)


@pytest.mark.parametrize("name", MODELS)
def test_training_lowers_the_loss_and_keeps_rotations_orthogonal(tmp_path, name):
    model = rotated(name)
    neurons = {k: v.clone() for k, v in model.state_dict().items() if k.endswith(".original")}
    it = trainer(model, tmp_path, name, max_steps=30, optimizer={"lr": 1e-2})
    before = it.evaluate(examples(name, 16))["eval_loss"]
    run(it)
    assert it.evaluate(examples(name, 16))["eval_loss"] < before - 0.02
    assert hs.orthogonal.orthogonality_error(model) < 1e-5
    assert neurons and all(torch.equal(model.state_dict()[k], v) for k, v in neurons.items())


def test_rotations_have_no_decay_and_rates_of_their_own(tmp_path):
    model = rotated("bert")
    it = trainer(model, tmp_path, optimizer={"lr": 1e-3, "weight_decay": 0.1})
    groups = it.create_optimizer().param_groups
    of = {id(p): group for group in groups for p in group["params"]}
    U = [p for name, p in model.named_parameters() if name.endswith(".U") and p.requires_grad]
    assert U and all(of[id(p)]["weight_decay"] == 0 for p in U)
    rates = {of[id(p)]["lr"] for p in U}
    assert len(rates) > 1 and 1e-3 not in rates
    head = classifier(model)
    assert of[id(head.weight)]["weight_decay"] == 0.1 and of[id(head.weight)]["lr"] == 1e-3
    assert of[id(head.bias)]["weight_decay"] == 0
    assert len(of) == sum(p.requires_grad for p in model.parameters())


def test_ogd(tmp_path):
    model = rotated(method="ogd")
    run(trainer(model, tmp_path, optimizer={"name": "ogd", "lr": 0.1, "momentum": 0.9}))
    moved = [p for n, p in model.named_parameters() if n.endswith(".U")]
    assert all((p - torch.eye(p.shape[-1])).abs().max() > 0 for p in moved)
    assert max((p - torch.eye(p.shape[-1])).abs().max() for p in moved) > 1e-2
    assert hs.orthogonal.orthogonality_error(model) < 1e-5
    with pytest.raises(ValueError, match="only OGD keeps rotations of method 'ogd' orthogonal"):
        trainer(model, tmp_path, optimizer={"name": "adamw", "lr": 1e-3}).create_optimizer()


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path):
    plain = rotated("llama")
    saving = rotated("llama")
    run(trainer(plain, tmp_path, "llama", max_steps=3))
    run(trainer(saving, tmp_path, "llama", max_steps=3, gradient_checkpointing=True))
    assert saving.is_gradient_checkpointing
    close(logits(saving.eval(), "llama"), logits(plain.eval(), "llama"), scale=10)


@pytest.mark.parametrize("method", ["cayley", "ogd"])
def test_a_resumed_run_is_the_one_that_was_not_interrupted(tmp_path, method):
    kind = {"name": "ogd", "momentum": 0.9, "lr": 0.1} if method == "ogd" else {"lr": 3e-3}
    options = {"optimizer": kind, "save_strategy": "steps", "save_steps": 3}
    whole = rotated(method=method)
    run(trainer(whole, tmp_path / "whole", **options))
    again = rotated(method=method)
    it = trainer(again, tmp_path / "whole", **options)
    run(it, resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert it.state.global_step == 6
    for (name, one), other in zip(
        whole.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), name
    # and every checkpoint is a plain model for from_pretrained
    plain = type(whole).from_pretrained(tmp_path / "whole" / "checkpoint-6").eval()
    close(logits(plain, "bert"), logits(whole.eval(), "bert"), scale=10)


def test_the_best_checkpoint_comes_back_whole(tmp_path):
    model = rotated()
    it = trainer(
        model, tmp_path, max_steps=4, save_strategy="steps", save_steps=1, eval_strategy="steps",
        eval_steps=1, load_best_model_at_end=True, metric_for_best_model="eval_loss",
        optimizer={"lr": 0.3},
    )  # fmt: skip
    run(it)
    best = it.state.best_model_checkpoint
    plain = type(model).from_pretrained(best).eval()
    close(logits(plain, "bert"), logits(model.eval(), "bert"), scale=10)
    hs.orthogonal.save_adapter(model, tmp_path / "adapter")  # still over the base it began with
    close(
        logits(hs.orthogonal.load_adapter(make("bert"), tmp_path / "adapter"), "bert"),
        logits(model, "bert"),
    )


def test_a_checkpoint_without_rotations_cannot_resume(tmp_path):
    it = trainer(rotated(), tmp_path, callbacks=[], save_strategy="steps", save_steps=3)
    run(it)
    with pytest.raises(FileNotFoundError, match=r"resume_from=\.\.\."):
        run(trainer(rotated(), tmp_path), resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    with pytest.raises(ValueError, match="no rotated layer"):
        trainer(make("bert"), tmp_path)


def test_weights_that_the_caller_loads_arrive_in_a_trained_model(tmp_path):
    model = rotated()
    run(trainer(model, tmp_path))
    plain = make("bert")
    with torch.no_grad():
        for p in plain.parameters():
            p.mul_(1.1)
    model.load_state_dict(plain.state_dict())
    close(logits(model.eval(), "bert"), logits(plain, "bert"), scale=30)


def test_a_callback_that_joins_late_cannot_resume(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 3}
    run(trainer(rotated(), tmp_path, **settings))
    it = trainer(rotated(), tmp_path, callbacks=[], **settings)
    it.add_callback(RotationCallback())
    with pytest.raises(ValueError, match="joined after the Trainer was made"):
        run(it, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_bfloat16_weights(tmp_path):
    model = rotated("bert").bfloat16()
    before = logits(model.eval(), "bert")
    run(trainer(model, tmp_path, max_steps=4, optimizer={"lr": 3e-2}))
    assert (logits(model.eval(), "bert") - before).abs().max() > 1e-2
    hs.orthogonal.save_adapter(model, tmp_path / "adapter")
    again = hs.orthogonal.load_adapter(make("bert").bfloat16(), tmp_path / "adapter")
    close(logits(again, "bert"), logits(model, "bert"))


def test_wrong_names_and_nothing_to_train_are_refused():
    with pytest.raises(ValueError, match="unknown optimizer 'sdg'.*did you mean 'sgd'"):
        rotation_optimizer(rotated(), "sdg")
    with pytest.raises(ValueError, match="no parameter to train"):
        rotation_optimizer(make("bert").requires_grad_(False))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "exponential"}, "with method='cayley', the model with method='exponential'"),
        ({"blocks": 2}, "with blocks=1, the model with blocks=2"),
    ],
)
def test_a_run_with_other_rotations_cannot_resume(tmp_path, options, words):
    run(trainer(rotated(), tmp_path, save_strategy="steps", save_steps=3))
    with pytest.raises(ValueError, match=words):
        run(trainer(rotated(**options), tmp_path),
            resume_from_checkpoint=str(tmp_path / "checkpoint-3"))  # fmt: skip


def test_a_run_with_restarts_resumes(tmp_path):
    class Restart(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **objects):
            if state.global_step % 2 == 1:
                hs.orthogonal.restart(model, optimizer)

    options = {"save_strategy": "steps", "save_steps": 3}
    whole, again = (rotated(both_sides=True) for _ in range(2))
    run(trainer(whole, tmp_path, callbacks=[Restart(), RotationCallback()], **options))
    it = trainer(again, tmp_path, callbacks=[Restart(), RotationCallback()], **options)
    run(it, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(logits(again.eval(), "bert"), logits(whole.eval(), "bert"))
