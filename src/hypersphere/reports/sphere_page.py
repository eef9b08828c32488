"""A point configuration as a page: contacts, hull, holes and defects on a sphere that turns."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor

from .._optional import require
from .._version import __version__

__all__ = ["configuration", "write_sphere"]

ASSETS = Path(__file__).with_name("assets")


def configuration(points: Tensor, contacts: bool = False, mirrored: bool = False) -> dict[str, Any]:
    """What is drawn of points on the 2-sphere.

    Args:
        points: (n, 3), unit vectors.
        contacts: whether the pairs at the smallest angle are contacts.
        mirrored: whether the second half are the mirror images of the first.

    Returns:
        points; contacts, pairs within 1e-7 of the smallest distance; faces of the convex hull, in
        order around each; holes, their centers and angular radii; degrees, neighbors on the hull;
        rattlers, points without a contact.
    """
    x = points.double()
    touching: list[list[int]] = []
    if contacts and len(x) > 1:
        distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        distance.fill_diagonal_(torch.inf)
        touching = (distance < distance.min() + 1e-7).triu(1).nonzero().tolist()
    held = {i for pair in touching for i in pair}
    faces, holes = _hull(x)
    degrees = [0] * len(x)
    edges = {frozenset(e) for face in faces for e in zip(face, face[1:] + face[:1], strict=True)}
    for edge in edges:
        for i in edge:
            degrees[i] += 1
    return {
        "points": [[round(v, 6) for v in row] for row in x.tolist()],
        "contacts": touching,
        "faces": faces,
        "holes": [[round(v, 6) for v in hole] for hole in holes],
        "deepest": max((hole[3] for hole in holes), default=1.0),
        "degrees": degrees,
        "rattlers": [i for i in range(len(x)) if touching and i not in held],
        "mirrored": mirrored,
    }


def _hull(x: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """Faces as corners in order, and (center, radius) of the empty cap over each; flat: none."""
    spatial = require("scipy.spatial", extra="data")
    if len(x) < 4:
        return [], []
    try:
        hull = spatial.ConvexHull(x.numpy())
    except spatial.QhullError:
        return [], []
    planes: dict[tuple[int, ...], set[int]] = {}
    normals: dict[tuple[int, ...], Tensor] = {}
    for simplex, equation in zip(hull.simplices, hull.equations, strict=True):
        key = tuple(int(v) for v in (equation * 1e7).round())  # triangles of one face share it
        planes.setdefault(key, set()).update(int(i) for i in simplex)
        normals[key] = torch.tensor(equation)
    faces, holes = [], []
    for key, corners in planes.items():
        normal = normals[key][:3]
        index = sorted(corners)
        first = x[index[0]] - normal * (x[index[0]] @ normal)
        second = torch.linalg.cross(normal, first)
        angle = torch.atan2(x[index] @ second, x[index] @ first)
        faces.append([index[k] for k in angle.argsort().tolist()])
        radius = float((-normals[key][3]).clamp(-1, 1).acos())
        holes.append([*normal.tolist(), radius])
    return faces, holes


def write_sphere(
    path: str | Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    points: Tensor,
    contacts: bool = False,
    mirrored: bool = False,
) -> Path:
    """Write the page; it opens offline and is a few hundred kB for thousands of points.

    Args:
        path: the page.
        title: of the page.
        facts: names and values for the table beside the sphere.
        points: (n, 3), unit vectors.
        contacts: whether the pairs at the smallest angle are contacts.
        mirrored: whether the second half are the mirror images of the first.

    Returns:
        The page.
    """
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in facts
    )
    content = json.dumps(configuration(points, contacts, mirrored), separators=(",", ":"))
    text = Template((ASSETS / "sphere.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        facts=rows,
        data=content.replace("</", "<\\/"),
        js=(ASSETS / "sphere.js").read_text("utf-8"),
        version=__version__,
    )
    target = Path(path)
    target.write_text(text, encoding="utf-8")
    return target
