"""A small run folder with everything a report reads, and a headless browser to read it with."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

CONFIG = """model:
  name: cnn9
data:
  name: digits
head:
  name: asoftmax
  m: {m}
seed: 0
"""


def _make_run(folder: Path, m: int = 4, dim: int = 3, images: bool = True) -> Path:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(m)
    (folder / "config.yaml").write_text(CONFIG.format(m=m))
    versions = {"hypersphere": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
    record = {
        "command": ["hypersphere", "train", "--head.m", str(m)],
        "seed": 0,
        "versions": versions,
    }
    (folder / "run.json").write_text(json.dumps(record))
    rows = []
    for step in range(0, 200, 10):
        loss = 3 * np.exp(-step / 50)
        rows.append({"step": step, "split": "train", "loss": loss})
        rows.append({"step": step, "split": "test", "loss": loss, "accuracy": 1 - loss / 4})
        energy = {"conv0": 1.0, "conv1": 2.0 - step / 400}
        rows.append({"step": step, "split": "monitor", "energy": energy})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"last": {"step": 190, "accuracy": 0.9771}, "best": {"step": 180, "accuracy": 0.9802}}
    (folder / "summary.json").write_text(json.dumps(summary | {"seconds": 12.5}))
    labels = np.arange(300) % 10
    centers = generator.normal(size=(10, dim))
    features = centers[labels] + 0.1 * generator.normal(size=(300, dim))
    arrays = {"features": features, "labels": labels, "classes": np.array(list("abcdefghij"))}
    if images:
        arrays["images"] = generator.integers(0, 255, size=(300, 8, 8)).astype(np.uint8)
    np.savez(folder / "features.npz", **arrays)
    counts = {"thresholds": [], "accepted": [0, 50, 90, 100], "false": [0, 1, 10, 100]}
    points = [{"far": 0.1, "tar": 0.9}, {"far": 1e-6, "tar": None}]
    result = {"kind": "VerificationResult", "accuracy": 0.93, "roc": counts, "tar_at_far": points}
    (folder / "verification.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def make_run():
    """Writes a run folder: make_run(folder, m=4, dim=3, images=True)."""
    return _make_run


@pytest.fixture
def run(tmp_path):
    return _make_run(tmp_path / "run-a")


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium through its driver; installed on CI if the machine can, else a skip."""
    if find_chromium() is None and os.environ.get("CI") and shutil.which("apt-get"):
        packages = ["chromium", "chromium-driver"]
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", *packages],
        ):
            subprocess.run(command, capture_output=True, timeout=500)
    chromium, driver = find_chromium(), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    profile = tempfile.mkdtemp()
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    session.set_page_load_timeout(60)
    yield session
    session.quit()
    shutil.rmtree(profile, ignore_errors=True)
