"""What a user with nothing but torch, numpy and the wheel can do: one thing from each part."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import hypersphere as hs

assert Path(hs.__file__).is_relative_to(sys.prefix), f"not the installed wheel: {hs.__file__}"
assert importlib.util.find_spec("sklearn") is None, "the environment holds more than the core"

import torch  # noqa: E402
from torch import nn  # noqa: E402

model = nn.Sequential(
    hs.layers.SphereConv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(8, 16),
)  # fmt: skip
hs.orthogonal.rotate(model, method="cayley", skip=())
head = hs.heads.ASoftmaxHead(in_features=16, num_classes=5, m=4)
energy = hs.regularizers.MHE(half_space=True)
x, y = torch.randn(6, 1, 8, 8), torch.randint(5, (6,))
loss = head.loss(model(x), y) + energy(nn.ModuleList([model, head]))
loss.backward()
assert loss.isfinite()
before = model(x)
hs.orthogonal.fold(model)
torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-4)
for part in ("data", "evaluation", "models", "reports", "training"):
    assert getattr(hs, part).__all__, part
command = Path(sys.prefix, "bin", "hypersphere")
listing = subprocess.run([command, "models"], check=True, capture_output=True, text=True).stdout
assert "sphereface20" in listing.replace("-", ""), listing
recipes = Path(hs.__file__).parent / "recipes"
assert any(recipes.rglob("*.yaml")), "the recipes are not in the wheel"
print(f"wheel {hs.__version__}: layers, heads, regularizers, orthogonal, command and recipes work")
