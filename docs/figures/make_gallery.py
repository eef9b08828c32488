"""Makes docs/gallery.md and its pictures from real small runs: python docs/figures/make_gallery.py

Curves are drawn from the functions themselves; the spheres from gradient descent on ten neurons;
the last two from networks trained on the embedded digits. The figures quoted on the page are kept
in results/gallery.json and the page is written from that file.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.reports import figures, save

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(__file__).with_name("gallery")

PAGE = """# Method gallery

Every picture is made by `python docs/figures/make_gallery.py`, from the package's own functions and
from small runs that take about a minute together. A gallery of people is something else: see
[open set](open-set.md).

## Operators

| angular activations g (4.11-4.14) | magnitudes h, radius 1 (4.4-4.10) |
|---|---|
| ![g]({F}/angular.png) | ![h]({F}/magnitude.png) |

## Margins

![psi]({F}/margins.png)

psi(theta) of A-Softmax for m = 2, 3, 4 (Eq. 2.6), of ArcFace and of AM-Softmax: decreasing and
never above cos(theta), which is the design rule.

## Neurons on the sphere

Ten neurons in R^3 from one random start, after {steps} steps of gradient descent on each
regularizer alone (Fig. 5.1). Crosses are the start, dots the end, circles the mirror images that
half-space MHE keeps away from.

| orthonormal | MHE | half-space MHE |
|---|---|---|
| ![orthonormal]({F}/orthonormal.png) | ![MHE]({F}/mhe.png) | ![half]({F}/half-space-mhe.png) |

| | start | orthonormal | MHE | half-space MHE |
|---|---|---|---|---|
| energy, s = 1 (mean over pairs) | {energies} |
| smallest angle (degrees) | {angles} |
| smallest angle between lines (degrees) | {line_angles} |

Three orthogonal axes cannot hold ten neurons, so the orthonormal penalty leaves some close
together; MHE spreads the directions, half-space MHE the lines through them.

## Orthogonal training keeps the energy

![energy]({F}/opt-energy.png)

Energy of the {width} hidden neurons of an MLP on the digits while it trains: the plain network's
changes to {baseline_energy:.3f} of its start, the rotated one's stays at {rotated_energy:.6f}, by
construction (7.2). Test accuracy: plain {baseline_accuracy:.1%}, rotated {rotated_accuracy:.1%}.

## Features in the plane

| softmax | A-Softmax, m = 4, annealed |
|---|---|
| ![softmax]({F}/softmax.png) | ![A-Softmax]({F}/asoftmax.png) |

2-D features of the test digits. Angular Fisher score (A.1; smaller is better separated): softmax
{softmax_fisher:.3f}, A-Softmax {asoftmax_fisher:.3f}.
"""


def curves() -> None:
    kinds = ("linear", "cosine", "square_cosine")
    g = {kind: lambda c, kind=kind: HF.angular(c, kind) for kind in kinds}
    for k in (0.1, 0.3, 0.7):
        g[f"sigmoid, k = {k}"] = lambda c, k=k: HF.angular(c, "sigmoid", k=k)
    save(figures.angular_curves(g), OUT / "angular.png")
    names = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed")
    h = {kind: lambda n, kind=kind: HF.magnitude(n, kind) for kind in names}
    save(figures.magnitude_curves(h), OUT / "magnitude.png")
    psi = {f"A-Softmax, m = {m}": lambda c, m=m: HF.margin(c, m=m) for m in (2, 3, 4)}
    psi["ArcFace, 0.5"] = lambda c: HF.margin(c, shift=0.5)
    psi["AM-Softmax, 0.35"] = lambda c: HF.margin(c, subtract=0.35)
    save(figures.margin_curves(psi), OUT / "margins.png")


def spheres(steps: int = 400) -> dict[str, object]:
    start = HF.uniform_on_sphere(10, 3, torch.Generator().manual_seed(4), torch.float64)
    objectives = {
        "orthonormal": lambda w: HF.orthonormal_penalty(HF.normalize(w)),
        "MHE": lambda w: HF.hyperspherical_energy(w, s=1.0),
        "half-space MHE": lambda w: HF.hyperspherical_energy(w, s=1.0, half_space=True),
    }
    ends = {"start": start}
    for name, objective in objectives.items():
        w = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([w], lr=0.02)
        history = []
        for _ in range(steps):
            history.append(HF.normalize(w.detach()))
            optimizer.zero_grad()
            objective(w).backward()
            optimizer.step()
        ends[name] = HF.normalize(w.detach())
        drawing = figures.neuron_trajectories(
            torch.stack([*history, ends[name]]), mirrored=name == "half-space MHE", title=name
        )
        save(drawing, OUT / f"{name.lower().replace(' ', '-')}.png")
    table = {"energy": [], "angle": [], "line_angle": []}
    for w in ends.values():
        table["energy"].append(float(HF.hyperspherical_energy(w, s=1.0)))
        table["angle"].append(float(HF.separation_distance(w).rad2deg()))
        # Drop the 180 degrees between a neuron and its own mirror image: lines i != j only.
        theta = HF.pairwise_angle(w)
        lines = torch.minimum(theta, torch.pi - theta) + 10 * torch.eye(10, dtype=w.dtype)
        table["line_angle"].append(float(lines.min().rad2deg()))
    return {"steps": steps, **table}


def digits() -> tuple[torch.Tensor, ...]:
    split = hs.data.load("digits")
    train, test = split.train, split.test
    scale = lambda d: d.images.float().flatten(1) / d.images.float().max()  # noqa: E731
    return scale(train), train.labels, scale(test), test.labels


def opt_energy(data: tuple[torch.Tensor, ...], steps: int = 600) -> dict[str, float]:
    x, y, x_test, y_test = data
    lines, result = {}, {}
    for name in ("plain", "rotated (Cayley)"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(x.shape[1], 48, bias=False), nn.ReLU(), nn.Linear(48, 10))
        if name != "plain":
            hs.orthogonal.rotate(model, method="cayley", skip=("2",))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        at, energies = [], []
        for step in range(steps + 1):
            if step % 20 == 0:
                at.append(step)
                weight = model[0].weight.detach().double()
                energies.append(float(HF.hyperspherical_energy(weight, s=1.0)))
            rows = torch.randint(len(x), (64,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        lines[name] = (at, energies)
        key = "baseline" if name == "plain" else "rotated"
        result[f"{key}_energy"] = energies[-1] / energies[0]
        with torch.no_grad():
            result[f"{key}_accuracy"] = float((model(x_test).argmax(1) == y_test).float().mean())
    save(figures.energy_curves(lines), OUT / "opt-energy.png")
    return {"width": 48, **result}


def plane(data: tuple[torch.Tensor, ...], steps: int = 1500) -> dict[str, float]:
    x, y, x_test, y_test = data
    heads = {
        "softmax": hs.heads.SoftmaxHead(2, 10, bias=False),
        "asoftmax": hs.heads.ASoftmaxHead(2, 10, m=4),
    }
    heads["asoftmax"].annealing = hs.heads.LambdaAnnealing(100.0, 0.01, 1.0, 3.0)
    result = {}
    for name, head in heads.items():
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Linear(x.shape[1], 128), nn.PReLU(), nn.Linear(128, 64), nn.PReLU(), nn.Linear(64, 2)
        )
        for parameter in head.parameters():
            nn.init.normal_(parameter)
        optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-3)
        for _ in range(steps):
            rows = torch.randint(len(x), (128,))
            optimizer.zero_grad()
            head.loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
            if head.annealing is not None:
                head.annealing.step()
        with torch.no_grad():
            features = net(x_test)
        save(figures.features_2d(features, y_test, head.weight), OUT / f"{name}.png")
        score = hs.evaluation.angular_fisher_score(features, y_test)
        result[f"{name}_fisher"] = float(score)
    return result


def main() -> None:
    curves()
    data = digits()
    record = {"spheres": spheres(), "opt": opt_energy(data), "plane": plane(data)}
    (ROOT / "results" / "gallery.json").write_text(json.dumps(record, indent=1) + "\n")
    spread = record["spheres"]
    join = lambda values, form: " | ".join(format(v, form) for v in values)  # noqa: E731
    page = PAGE.format(
        F="figures/gallery",
        steps=spread["steps"],
        energies=join(spread["energy"], ".4f"),
        angles=join(spread["angle"], ".1f"),
        line_angles=join(spread["line_angle"], ".1f"),
        **record["opt"],
        **record["plane"],
    )
    (ROOT / "docs" / "gallery.md").write_text(page)


if __name__ == "__main__":
    main()
