"""The kernels in C++: that they are taken, that they are right, and what happens without them."""

import ctypes
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import _terminal
from hypersphere import functional as HF
from hypersphere.functional._kernels import kept, libraries
from hypersphere.functional._kernels.decoupled import tiled
from hypersphere.functional._kernels.decoupled.native import layer as native_layer
from hypersphere.functional._kernels.decoupled.native import operator as native_operator
from hypersphere.functional._kernels.decoupled.native.tensors import HERE, norms_library
from hypersphere.functional._kernels.decoupled.routes import force
from hypersphere.functional.angular_functions import AngularFunction
from tolerances import close

needs_compiler = pytest.mark.skipif(
    libraries._compiler() is None, reason="no C++ compiler on this machine"
)
pytestmark = needs_compiler


@pytest.fixture
def only_native(monkeypatch):
    """Any other fused form raises."""

    def refuse(*arguments):
        raise AssertionError("the tiled form was taken")

    monkeypatch.setattr(tiled._Fused, "apply", refuse)


def layer(**options):
    return hs.layers.DecoupledConv2d(3, 5, 3, padding=1, **options)


def test_is_taken_by_layers(only_native):
    for angular in ("linear", "cosine", "sigmoid", "square_cosine"):
        for magnitude in ("sphere", "ball", "tanh", "segmented", "log", "mixed"):
            layer(magnitude=magnitude, angular=angular)(torch.randn(2, 3, 6, 6)).sum().backward()
    hs.layers.SphereLinear(4, 3)(torch.randn(5, 4)).sum().backward()


def test_is_not_taken_where_it_cannot():
    """Groups, other types, one and three dimensions, subclasses of tensors: as before."""

    class Own(torch.Tensor):
        pass

    cases = [
        (torch.randn(2, 4, 6, 6), torch.randn(4, 2, 3, 3), {"groups": 2}),
        (torch.randn(2, 3, 6, 6).double(), torch.randn(4, 3, 3, 3).double(), {}),
        (torch.randn(2, 3, 6, 6).bfloat16(), torch.randn(4, 3, 3, 3).bfloat16(), {}),
        (torch.randn(2, 3, 6), torch.randn(4, 3, 3), {}),
        (torch.randn(2, 3, 4, 4, 4), torch.randn(4, 3, 2, 2, 2), {}),
        (torch.randn(2, 3, 6, 6).as_subclass(Own), torch.randn(4, 3, 3, 3), {}),
        (torch.randn(0, 3, 6, 6), torch.randn(4, 3, 3, 3), {}),
    ]
    for x, weight, options in cases:
        got = HF.decoupled_conv(x, weight, angular="linear", **options)
        with force("tiled"):
            assert torch.equal(got, HF.decoupled_conv(x, weight, angular="linear", **options))


def test_switched_off(monkeypatch):
    x, own = torch.randn(2, 3, 6, 6), layer(angular="sigmoid")
    on = own(x)
    monkeypatch.setenv("HYPERSPHERE_NATIVE", "0")
    with monkeypatch.context() as patch:
        patch.setattr(native_operator._NativeOperator, "apply", None)
        patch.setattr(native_layer._NativeLayer, "apply", None)
        off = own(x)
    close(on, off, scale=3)


SCRIPT = """
import torch
from hypersphere import functional as HF
from hypersphere.functional._kernels.decoupled.native.tensors import HERE, norms_library
out = HF.decoupled_conv2d(torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3), magnitude="ball")
print(norms_library() is not None, float(out[0, 0, 0, 0]))
"""


@pytest.mark.parametrize(
    "environment, built",
    [
        ({}, True),
        ({"PATH": "", "CXX": ""}, False),  # no compiler
        ({"PATH": "", "CXX": "/bin/false"}, False),  # one that does not work
        ({"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere"}, True),  # a place of its own
    ],
    ids=["usual", "no compiler", "broken compiler", "no place to keep them"],
)
def test_without_what_it_needs(environment, built, tmp_path):
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=given, capture_output=True, text=True, check=True
    )
    told, value = run.stdout.split()
    assert told == str(built)
    assert float(value) == pytest.approx(1.0)


@pytest.fixture
def told(monkeypatch, caplog):
    """The messages about libraries, as if none had been built in this process."""
    monkeypatch.setattr(libraries, "_told_failed", False)
    libraries._tell_building.cache_clear()
    caplog.set_level("INFO", logger="hypersphere")
    yield caplog
    libraries._tell_building.cache_clear()


def test_building_is_told_once(tmp_path, monkeypatch, told):
    monkeypatch.setattr(libraries, "kept_folder", lambda: tmp_path)
    texts = [f'extern "C" int number() {{ return {i}; }}\n' for i in range(2)]
    for _ in range(2):
        assert [libraries.library.__wrapped__(text).number() for text in texts] == [0, 1]
    (message,) = told.messages
    assert message.startswith("building C++ kernels") and str(tmp_path) in message
    assert told.records[0].levelname == "INFO"  # a program that does not ask sees nothing
    libraries._tell_building.cache_clear()
    libraries.library.__wrapped__(texts[0])
    assert len(told.messages) == 1  # what is there already is not built


def test_a_build_that_fails_is_told_once(tmp_path, monkeypatch, told):
    """As on a full disk: the compiler ends with an error, and the layers do without."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\necho "some notes" >&2\n'
        'echo "fatal error: No space left on device" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(libraries, "_compiler", lambda: (str(compiler), "1"))
    monkeypatch.setattr(libraries, "kept_folder", lambda: tmp_path)
    for text in ("// one", "// two"):
        assert libraries.library.__wrapped__(text) is None
    assert [record.levelname for record in told.records] == ["INFO", "WARNING"]
    assert "more time: fatal error: No space left on device; CXX" in told.messages[1]
    assert "HYPERSPHERE_NATIVE=0" in told.messages[1]


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, told):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.kept_folder.__wrapped__().is_dir()
    (message,) = told.messages
    assert "cannot be kept" in message and "Not a directory" in message
    assert "set XDG_CACHE_HOME" in message


def test_commands_tell_what_the_library_logs(monkeypatch, capsys):
    """Warnings everywhere, and what takes long on a terminal; a library alone adds no handler."""
    logger, inner = logging.getLogger("hypersphere"), logging.getLogger(libraries.__name__)
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with _terminal.plain_log("train"):
            inner.info("building")
            inner.warning("no room")
        lines = capsys.readouterr().err.splitlines()
        building = ["hypersphere train: building"] if terminal else []
        assert lines == [*building, "hypersphere train: no room"]
    assert not logger.handlers and logger.level == logging.NOTSET


def test_damaged_library_is_built_anew(tmp_path, monkeypatch):
    """A file that is no library is replaced."""
    monkeypatch.setattr(libraries, "kept_folder", lambda: tmp_path)
    text = 'extern "C" int seven() { return 7; }\n'
    assert libraries.library.__wrapped__(text).seven() == 7
    (kept,) = tmp_path.glob("*.so")
    for damage in (b"", b"no library"):
        kept.unlink()  # not in place: this process has the old one in its memory
        kept.write_bytes(damage)
        assert libraries.library.__wrapped__(text).seven() == 7


def test_many_build_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "kept_folder", lambda: tmp_path)
    text = 'extern "C" int eight() { return 8; }\n'
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: libraries.library.__wrapped__(text).eight(), range(4)))
    assert found == [8] * 4
    assert len(list(tmp_path.iterdir())) == 1  # and nothing beside it


def test_the_functions_of_a_number(tmp_path):
    """exp, tanh, asin and sigmoid to a few units in the last place."""
    names = ("exp", "tanh", "asin", "sigmoid")
    bodies = [
        f"void {name}_all(const float* x, float* y, long n) "
        f"{{ for (long i = 0; i < n; ++i) y[i] = {name}_of(x[i]); }}"
        for name in names
    ]
    text = "\n".join(['#include "arithmetic.h"', 'extern "C" {', *bodies, "}", ""])
    found = libraries.library(text, headers=HERE)
    assert found is not None
    small = torch.logspace(-30, 0, 4001)
    for name in names:
        x = torch.cat([torch.linspace(-1, 1, 20001), small, -small])
        x = x if name == "asin" else torch.cat([x, torch.linspace(-80, 80, 20001)])
        y, function = torch.empty_like(x), getattr(found, f"{name}_all")
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
        function(x.data_ptr(), y.data_ptr(), len(x))
        want = getattr(torch, name)(x.double())
        error = (y.double() - want).abs() / want.abs().clamp_min(1e-37)
        assert float(error.max()) < 5e-7, name
        bad, to = torch.tensor([torch.nan]), torch.empty(1)
        function(bad.data_ptr(), to.data_ptr(), 1)
        assert to.isnan().all(), name


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_outputs_lie_as_those_of_torch(form, only_native):
    x = torch.randn(2, 4, 6, 5).contiguous(memory_format=form).requires_grad_()
    plain = nn.Conv2d(4, 3, 3)
    own = hs.layers.SphereConv2d(4, 3, 3, angular="linear")
    out = own(x)
    assert out.stride() == plain(x).stride()
    (grad,) = torch.autograd.grad(out.sum(), x)
    with force("whole"):
        (want,) = torch.autograd.grad(own(x).sum(), x)
    close(grad, want, scale=10)


@pytest.mark.parametrize("magnitude", ["sphere", "tanh"])
def test_many_pixels_keep_their_digits(magnitude):
    """Sums over a large batch, several blocks per image, one and two threads, any gradient."""
    torch.manual_seed(0)
    own = hs.layers.DecoupledConv2d(
        4, 7, 3, magnitude=magnitude, angular=hs.layers.SigmoidAngular(learnable=True), bias=True
    )
    x = torch.randn(6, 4, 45, 41)  # more than a block of pixels, and no multiple of one
    grad = torch.randn(6, 7, 43, 39)
    wide = hs.layers.DecoupledConv2d(
        4, 7, 3, magnitude=magnitude, angular=hs.layers.SigmoidAngular(learnable=True), bias=True,
        dtype=torch.float64,
    )  # fmt: skip
    wide.load_state_dict(own.state_dict())
    want = torch.autograd.grad(wide(x.double()), list(wide.parameters()), grad.double())
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for given in (grad, grad.contiguous(memory_format=torch.channels_last)):
                first = torch.autograd.grad(own(x), list(own.parameters()), given)
                again = torch.autograd.grad(own(x), list(own.parameters()), given)
                for one, other, exact in zip(first, again, want, strict=True):
                    assert torch.equal(one, other)
                    close(one, exact.float(), scale=10 * float(exact.abs().max().clamp_min(1)))
    finally:
        torch.set_num_threads(before)


def test_a_graph_that_is_kept(only_native):
    """Again and again, and from several threads at once: the cosines are computed anew."""
    own, x = layer(angular="sigmoid"), torch.randn(2, 3, 6, 6, requires_grad=True)
    out = own(x)
    grad = torch.randn_like(out)
    wanted = [x, *own.parameters()]
    first = torch.autograd.grad(out, wanted, grad, retain_graph=True)
    found: list = []

    def again():
        found.append(torch.autograd.grad(out, wanted, grad, retain_graph=True))

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for gradients in found:
        for one, other in zip(gradients, first, strict=True):
            close(one, other)


def test_second_derivatives_through_own_norms():
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, requires_grad=True)

    def penalty(x, weight):
        out = HF.decoupled_conv2d(x, weight, magnitude="log", angular="linear")
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, weight))

    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    close(penalty(x, weight), [t.float() for t in penalty(*wide)], scale=100)


def test_a_norm_of_the_user_gets_its_gradient():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    norm = HF.patch_norm(x, 3).detach().requires_grad_()
    out = HF.decoupled_conv2d(x, weight, magnitude="ball", norm=norm)
    (got,) = torch.autograd.grad(out.sum(), norm)
    with force("whole"):
        out = HF.decoupled_conv2d(x, weight, magnitude="ball", norm=norm)
        (want,) = torch.autograd.grad(out.sum(), norm)
    close(got, want, scale=10)


def test_nan_and_infinity_stay():
    weight = torch.randn(4, 3, 3, 3)
    for bad in (torch.nan, torch.inf):
        x = torch.randn(1, 3, 6, 6)
        x[0, 0, 1, 1] = bad
        got = HF.decoupled_conv2d(x, weight, angular="linear")
        with force("tiled"):
            want = HF.decoupled_conv2d(x, weight, angular="linear")
        assert torch.equal(got.isnan(), want.isnan())
        assert norms_library() is not None


def test_a_norm_of_another_shape_is_refused():
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    for norm in (torch.ones(1, 1, 1, 1), torch.ones(2, 1, 6, 6), torch.ones(2, 3, 4, 4)):
        with pytest.raises(ValueError, match=r"expected a norm of every patch \(2, 1, 4, 4\)"):
            HF.decoupled_conv2d(x, weight, magnitude="ball", norm=norm)
    with pytest.raises(ValueError, match=r"\(5, 1\)"):
        HF.decoupled_linear(torch.randn(5, 4), torch.randn(3, 4), norm=torch.ones(3, 1))


class Own(AngularFunction):
    """Formulas that a recorder of operations may misread; each agrees with its tiled form."""

    zero_at_right_angle = True

    def slope(self, cos, k=None, eps=None):
        return torch.ones_like(cos)

    def value(self, cos, k=None, eps=None):
        return cos.clone()


class SetsItems(Own):
    def slope(self, cos, k=None, eps=None):
        slope = torch.ones_like(cos)
        slope[cos < 0] = 2.0
        return slope


class PowerOfParameter(Own):
    default_k = 0.5

    def value(self, cos, k=None, eps=None):
        k = torch.as_tensor(0.5 if k is None else k).to(cos)
        return cos.abs() ** (1 / k)


class Copies(Own):
    def slope(self, cos, k=None, eps=None):
        return torch.zeros_like(cos).copy_(2 * cos.abs())


class ThroughView(Own):
    def value(self, cos, k=None, eps=None):
        out = cos.clone()
        out.view(-1).mul_(2.0)
        return out


class WholeNumbers(Own):
    def value(self, cos, k=None, eps=None):
        return (cos * 4).to(torch.int32).to(cos.dtype) / 4


class LooksAtValues(Own):
    def value(self, cos, k=None, eps=None):
        return cos * 2 if float(cos.flatten()[0]) > 0 else cos


class Masks(Own):
    def slope(self, cos, k=None, eps=None):
        positive = (cos > 0).float()
        return (1 + positive) / (2 + positive)


class ByName(Own):
    def slope(self, cos, k=None, eps=None):
        return torch.full_like(cos, fill_value=3.0)


@pytest.mark.parametrize("kind", Own.__subclasses__())
def test_formulas_that_cannot_be_written_down(kind):
    """Written down rightly, or computed without a library."""
    torch.manual_seed(1)
    x, weight = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3)
    options = {"angular": kind(), "magnitude": "log"}
    options |= {"k": torch.tensor([0.4, 0.5, 0.6, 0.7])} if kind.default_k else {}
    got = HF.decoupled_conv2d(x, weight, **options)
    found = torch.autograd.grad(got.sum(), x)
    with force("tiled"):
        want = HF.decoupled_conv2d(x, weight, **options)
        expected = torch.autograd.grad(want.sum(), x)
    close(got, want, scale=3)
    close(found, expected, scale=30)


def test_a_radius_that_has_diverged_shows():
    for magnitude in ("ball", "segmented"):
        options = {"magnitude": magnitude, "radius": torch.full((4,), torch.nan)}
        out = HF.decoupled_conv2d(torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), **options)
        assert out.isnan().all()


def test_constants_that_change_at_every_step_build_few_libraries(monkeypatch):
    built = []
    monkeypatch.setattr(native_operator, "_made_of", lambda *of: built.append(of))
    x, weight = torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3)
    for step in range(20):
        HF.decoupled_conv2d(x, weight, magnitude="log", angular=Own(), alpha=1 + step / 64)
    assert len(built) <= 20  # each Own() is a formula by itself
    own, before = Own(), len(built)
    for step in range(20):
        HF.decoupled_conv2d(x, weight, magnitude="log", angular=own, alpha=1 + step / 64)
    assert len(built) - before == native_operator.MOST


def test_a_folder_of_others_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = kept.kept_folder.__wrapped__()
    assert before == tmp_path / "hypersphere" / "kernels" and not caplog.messages
    before.chmod(0o777)
    assert kept.kept_folder.__wrapped__() != before
    assert "can be written by other users" in caplog.messages[0]
    before.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert kept.kept_folder.__wrapped__() != before
    assert "belongs to another user" in caplog.messages[1]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *of: False)
    assert kept.kept_folder.__wrapped__() != before
    assert f"{before} cannot be written; set XDG_CACHE_HOME" in caplog.messages[2]


@pytest.mark.slow
def test_wide_layers_compile():
    """With 16 channels and more the layout of the backward is chosen by a measurement."""
    own = hs.layers.SphereConv2d(16, 16, 3, angular="linear")
    x = torch.randn(2, 16, 6, 6, requires_grad=True)
    wanted = [x, *own.parameters()]
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), wanted)
    close(found, torch.autograd.grad(own(x).square().sum(), wanted), scale=30)
