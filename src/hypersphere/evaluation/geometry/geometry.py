"""Where a trained model lies on the sphere: energies, angles, norms and rank, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...finding import find_layers
from ...functional.angles import normalize, pairwise_cosine, row_norm
from ...functional.energy import hyperspherical_energy
from ..inputs import check_features, check_row_labels, check_two_classes, to_unit_scale
from ..results import Result, shown
from .separability import angular_fisher_score, angular_visual_hardness

BINS = 60


def neuron_weights(model: nn.Module, embeddings: bool = False) -> dict[str, Tensor]:
    """The neurons of each layer that has at least two, as `finding.find_layers` finds them.

    Args:
        model: any module.
        embeddings: also those of embeddings, one per entry.

    Returns:
        Name of the layer -> (N, d) float32, one neuron per row.

    >>> list(neuron_weights(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 2))))
    ['0', '2']
    """
    found = {}
    for site in find_layers(model, embeddings):
        if site.state != "quantized" and site.layout.sets * site.layout.neurons > 1:
            found[site.label] = site.layout.rows(site.read().detach()).float()
    return found


def effective_rank(matrix: Tensor) -> float:
    """exp(H(p)), p the singular values over their sum: between 1 and the true rank.

    Args:
        matrix: (n, d).

    Returns:
        The effective rank; 0 for a zero matrix.

    >>> round(effective_rank(torch.eye(5)), 4), round(effective_rank(torch.ones(5, 5)), 4)
    (5.0, 1.0)
    """
    # Eigenvalues of the smaller Gram matrix: n x n is never made when n >> d.
    (m,), _ = to_unit_scale(check_features("matrix", matrix).double())
    gram = m.T @ m if m.shape[0] > m.shape[1] else m @ m.T
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    if float(values.sum()) == 0:
        return 0.0
    p = values / values.sum()
    p = p[p > 1e-12]
    return float((-(p * p.log()).sum()).exp())


@dataclass
class Norms:
    """Lengths of vectors.

    Args:
        mean: mean length.
        deviation: standard deviation of the lengths.
        smallest: the smallest length.
        largest: the largest length.
    """

    mean: float
    deviation: float
    smallest: float
    largest: float

    @staticmethod
    def of(vectors: Tensor) -> Norms:
        """The lengths of rows.

        Args:
            vectors: (n, d).

        Returns:
            Their summary.
        """
        length = row_norm(vectors.double())
        (small,), exponent = to_unit_scale(length)
        deviation = float(small.std()) if len(small) > 1 else 0.0
        figures = (float(small.mean()), deviation, float(small.min()), float(small.max()))
        return Norms(*(math.ldexp(figure, exponent) for figure in figures))


@dataclass
class LayerGeometry:
    """One layer.

    Args:
        name: of the layer.
        neurons: number of neurons N.
        dim: dimension d of a neuron.
        energy: mean energy (Eq. 5.1; s = 2 by default).
        half_space_energy: the same with the mirrored neurons.
        geodesic_energy: the same with angles for distances (Eq. 5.5).
        mean_angle: mean angle between two neurons, in radians.
        smallest_angle: the smallest, in radians.
        angle_counts: histogram of the angles.
        norms: lengths of the neurons.
        effective_rank: of the (N, d) weight.
    """

    name: str
    neurons: int
    dim: int
    energy: float
    half_space_energy: float
    geodesic_energy: float
    mean_angle: float
    smallest_angle: float
    angle_counts: list[int]
    norms: Norms
    effective_rank: float


@dataclass
class FeatureGeometry:
    """Features of a test set.

    Args:
        fisher_score: angular Fisher score (Eq. A.1); lower is better.
        mean_hardness: mean angular visual hardness (Eq. 1.1); NaN without class weights.
        positive_counts: histogram of the angles of positive pairs.
        negative_counts: histogram of the angles of negative pairs.
        mean_positive_angle: in radians.
        mean_negative_angle: in radians.
        norms: lengths of the features.
        effective_rank: of the (n, d) features.
    """

    fisher_score: float
    mean_hardness: float
    positive_counts: list[float]
    negative_counts: list[float]
    mean_positive_angle: float
    mean_negative_angle: float
    norms: Norms
    effective_rank: float


@dataclass
class GeometryResult(Result):
    """Result of `geometry`.

    Args:
        layers: one entry per layer.
        features: the features of a test set, where given.
        edges: of all histograms of angles, in radians.
        s: the power of the energies.
    """

    layers: list[LayerGeometry]
    features: FeatureGeometry | None
    edges: list[float]
    s: float

    def header(self) -> Sequence[str]:
        return (
            "layer", "neurons", "dim", "energy", "half space", "geodesic",
            "mean angle", "smallest", "norm", "rank",
        )  # fmt: skip

    def rows(self) -> Iterator[Sequence[object]]:
        for layer in self.layers:
            yield (
                layer.name,
                layer.neurons,
                layer.dim,
                f"{layer.energy:.4f}",
                f"{layer.half_space_energy:.4f}",
                f"{layer.geodesic_energy:.4f}",
                f"{layer.mean_angle:.3f}",
                f"{layer.smallest_angle:.3f}",
                shown(layer.norms.mean, 3),
                f"{layer.effective_rank:.1f}",
            )
        if self.features is not None:
            f = self.features
            yield ("features:",)
            yield "  angular Fisher score", f"{f.fisher_score:.4f}"
            if not math.isnan(f.mean_hardness):
                yield "  mean AVH", f"{f.mean_hardness:.4f}"
            yield "  positive pairs, mean angle", f"{f.mean_positive_angle:.3f}"
            yield "  negative pairs, mean angle", f"{f.mean_negative_angle:.3f}"
            yield "  norm", f"{shown(f.norms.mean, 3)} +- {shown(f.norms.deviation, 3)}"
            yield "  effective rank", f"{f.effective_rank:.1f}"


def geometry(
    model: nn.Module | None = None,
    features: Tensor | None = None,
    labels: Tensor | None = None,
    class_weight: Tensor | None = None,
    *,
    s: float = 2.0,
) -> GeometryResult:
    """Geometry of a model's neurons and of the features it gives.

    Args:
        model: any module; each convolution, linear layer and head with two neurons or more counts.
        features: (n, d) of a test set.
        labels: (n,) of the test set.
        class_weight: (C, d) for angular visual hardness. Default: the model's last layer, when its
            dimension is that of the features.
        s: the power of the energies.

    Returns:
        The figures of each layer and of the features.
    """
    if model is None and features is None:
        raise ValueError("give a model, or features with labels, or both")
    weights = neuron_weights(model) if model is not None else {}
    with torch.no_grad():
        layers = [layer_geometry(name, weight, s) for name, weight in weights.items()]
        if class_weight is None and weights and features is not None and labels is not None:
            last = list(weights.values())[-1]
            fits = last.shape[1] == features.shape[1] and len(last) > int(labels.max())
            class_weight = last if fits else None
        found = None
        if features is not None:
            if labels is None:
                raise ValueError("features were given without labels")
            found = feature_geometry(features, labels, class_weight)
    edges = torch.linspace(0, math.pi, BINS + 1).tolist()
    return GeometryResult(layers, found, edges, s)


def layer_geometry(name: str, weight: Tensor, s: float = 2.0) -> LayerGeometry:
    """The figures of one layer.

    Args:
        name: of the layer.
        weight: (N, d), one neuron per row.
        s: the power of the energies.

    Returns:
        Energies, angles, norms and rank.
    """
    counts, total, smallest = torch.zeros(BINS), 0.0, math.pi
    unit = normalize(weight)
    for start in range(0, len(unit), 1024):
        cos = pairwise_cosine(unit[start : start + 1024], unit)
        angle = cos.clamp(-1, 1).acos()[torch.ones_like(cos, dtype=torch.bool).triu(start + 1)]
        if angle.numel():
            counts += torch.histc(angle, BINS, 0, math.pi)
            total += float(angle.double().sum())
            smallest = min(smallest, float(angle.min()))
    return LayerGeometry(
        name,
        len(weight),
        weight.shape[1],
        float(hyperspherical_energy(weight, s)),
        float(hyperspherical_energy(weight, s, half_space=True)),
        float(hyperspherical_energy(weight, s, distance="geodesic")),
        total / (len(weight) * (len(weight) - 1) / 2),
        smallest,
        [int(c) for c in counts.tolist()],
        Norms.of(weight),
        effective_rank(weight),
    )


def pair_angles(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """Angles of all positive and all negative pairs (Fig. 2.10), streamed.

    Args:
        features: (n, d).
        labels: (n,).

    Returns:
        Histograms (60,) over [0, pi] of positive and of negative pairs, and their mean angles in
        radians.
    """
    unit = normalize(check_features("features", features))
    labels = check_row_labels("labels", labels, len(unit))
    counts = torch.zeros(2, BINS, dtype=torch.float64)
    sums, totals = [0.0, 0.0], [0, 0]
    for i in range(0, len(unit), 2048):
        for j in range(i, len(unit), 2048):
            angle = (unit[i : i + 2048] @ unit[j : j + 2048].T).clamp_(-1, 1).acos_()
            same = labels[i : i + 2048].unsqueeze(1) == labels[j : j + 2048]
            pair = torch.ones_like(same).triu(1) if i == j else torch.ones_like(same)
            for kind, mask in ((0, same & pair), (1, ~same & pair)):
                chosen = angle[mask]
                if chosen.numel():
                    counts[kind] += torch.histc(chosen, BINS, 0, math.pi).double()
                    sums[kind] += float(chosen.double().sum())
                    totals[kind] += chosen.numel()
    means = [s / t if t else math.nan for s, t in zip(sums, totals, strict=True)]
    return counts[0], counts[1], means[0], means[1]


def feature_geometry(
    features: Tensor, labels: Tensor, class_weight: Tensor | None = None
) -> FeatureGeometry:
    """The figures of features.

    Args:
        features: (n, d).
        labels: (n,).
        class_weight: (C, d) for angular visual hardness. Default: none.

    Returns:
        Angles, scatter, hardness, norms and rank.
    """
    features = check_features("features", features)
    labels = check_two_classes("labels", check_row_labels("labels", labels, len(features)))
    positive, negative, mean_positive, mean_negative = pair_angles(features, labels)
    hardness = math.nan
    if class_weight is not None:
        weight = class_weight.detach().to(features)
        hardness = float(angular_visual_hardness(features, labels, weight).mean())
    return FeatureGeometry(
        float(angular_fisher_score(features, labels)),
        hardness,
        positive.tolist(),
        negative.tolist(),
        mean_positive,
        mean_negative,
        Norms.of(features),
        effective_rank(features),
    )
