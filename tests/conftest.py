"""Set-up that has to happen before torch runs its first operation."""

import gc
import hashlib
import os
import signal
import tempfile

# Some CPUs announce bfloat16 instructions that their oneDNN kernels then cannot execute.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("MPLBACKEND", "Agg")
# No test has a graphics card: kernels of Triton are interpreted, which has to be said before they
# are read.
os.environ.setdefault("TRITON_INTERPRET", "1")
# What torch.compile keeps is code for one instruction set, under a name that does not say which.
if "ATEN_CPU_CAPABILITY" in os.environ:
    kept = f"torchinductor-{os.getuid()}-{os.environ['ATEN_CPU_CAPABILITY']}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), kept))

# A shell lets what it starts in the background ignore Ctrl-C, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest
import torch

# Two workers on two cores: a second thread each would only make them wait for one another.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

hypothesis.settings.register_profile(
    "hypersphere", deadline=None, max_examples=25, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("hypersphere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """HYPERSPHERE_TEST_ORDER, any word, shuffles the tests: each word in its own order."""
    order = os.environ.get("HYPERSPHERE_TEST_ORDER")
    if order:
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.nodeid}".encode()).digest())


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """What is there before a module is no garbage, neither imports nor the list of tests: to look
    through all of it would take a third of a second for each full collection.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else what was frozen is reported as leaked at the end


@pytest.fixture(autouse=True)
def same_start() -> None:
    """Each test starts from the same random state and settings, whatever ran before it."""
    torch.manual_seed(0)
    # The first torch.compile of a process turns the checks of torch.distributions off for good.
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a comparison are forked from a process that has imported what they need."""
    import subprocess
    from types import SimpleNamespace

    import warm

    parts = SimpleNamespace(**{**vars(subprocess), "Popen": warm.Popen})
    monkeypatch.setattr("hypersphere.training.campaign.subprocess", parts)


@pytest.fixture
def data_root():
    """Folder with the real data sets, or a skip that says how to give it."""
    root = os.environ.get("HYPERSPHERE_DATA")
    if not root:
        pytest.skip("set HYPERSPHERE_DATA to the folder with the real data sets to run this")
    from pathlib import Path

    return Path(root)
