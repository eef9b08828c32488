"""What failed on the processor of another maker, computed here as that one would."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONCE_FAILED = [
    "tests/heads/test_heads.py::test_sampling_is_for_training_only",
    "tests/orthogonal/test_training.py::test_fold_gives_the_plain_model",
]


def settings() -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    return dev.PORTABLE


def test_every_setting_is_tried():
    found = settings()
    tried = {(name, value) for setting in found.values() for name, value in setting.items()}
    assert {("ATEN_CPU_CAPABILITY", "default"), ("ATEN_CPU_CAPABILITY", "avx2")} <= tried
    assert {("ONEDNN_MAX_CPU_ISA", "AVX2"), ("MKL_CBWR", "COMPATIBLE")} <= tried
    assert {("OMP_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "2")} <= tried
    assert ("HYPERSPHERE_TEST_ORDER", "random") in tried


@pytest.mark.slow
def test_the_oldest_instructions_give_the_same_answers():
    environment = {**os.environ, **settings()["oldest"]}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch names it: that of this processor
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ONCE_FAILED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "9 passed" in done.stdout
