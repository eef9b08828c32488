"""The chunked loss against the dense one, the dense one against the equations."""

import pytest
import torch
import torch.nn.functional as F

from hypersphere.functional import (
    Margin,
    class_logsumexp,
    margin_cross_entropy,
    margin_logits,
    sample_classes,
)

from reference import margins as reference

D = torch.float64


def problem(batch=6, classes=11, dim=5, dtype=D):
    x = torch.randn(batch, dim, dtype=dtype, requires_grad=True)
    w = torch.randn(classes, dim, dtype=dtype, requires_grad=True)
    return x, w, torch.randint(classes, (batch,))


SETTINGS = {
    "softmax": ({"unit": False}, {}),
    "l_softmax m=2": ({"unit": False}, {"m": 2}),
    "l_softmax m=2.5": ({"unit": False}, {"m": 2.5}),
    "w_softmax": ({}, {}),
    "w_softmax linear": ({"kind": "linear"}, {}),
    "w_softmax sigmoid": ({"kind": "sigmoid"}, {}),
    "s_softmax": ({"scale": 20.0}, {}),
    "s_softmax sigmoid": ({"scale": 20.0, "kind": "sigmoid"}, {}),
    "a_softmax": ({}, {"m": 4}),
    "a_softmax s": ({"scale": 30.0}, {"m": 1.7}),
    "ga linear": ({"kind": "linear"}, {"m": 4}),
    "ga sigmoid": ({"kind": "sigmoid"}, {"m": 3}),
    "ga square": ({"kind": "square_cosine", "unit": False}, {"m": 2}),
    "am": ({"scale": 30.0}, {"subtract": 0.35}),
    "arcface": ({"scale": 64.0}, {"shift": 0.5}),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lam", [None, 3.0])
@pytest.mark.parametrize("name", SETTINGS)
def test_fused_dense_and_reference_agree(name, lam, with_bias):
    options, numbers = SETTINGS[name]
    x, w, y = problem()
    bias = torch.randn(len(w), dtype=D, requires_grad=True) if with_bias else None
    k = torch.tensor(0.3, dtype=D, requires_grad=True) if options.get("kind") == "sigmoid" else None
    parts = [t for t in (x, w, bias, k) if t is not None]
    psi = Margin(**numbers)
    dense = margin_logits(x, w, y, psi, bias=bias, lam=lam, k=k, **options)
    expected = reference.logits(
        x.detach(), w.detach(), y, bias=bias, lam=lam or 0.0, k=0.3, **options, **numbers
    )
    torch.testing.assert_close(dense.detach(), expected, rtol=1e-7, atol=1e-7)
    loss = F.cross_entropy(dense, y)
    assert loss.item() == pytest.approx(reference.cross_entropy(expected, y), abs=1e-7)

    fused = margin_cross_entropy(x, w, y, psi, bias=bias, lam=lam, k=k, chunk=3, **options)
    torch.testing.assert_close(fused, loss, rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(fused, parts), torch.autograd.grad(loss, parts), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["softmax", "w_softmax sigmoid", "a_softmax", "ga linear", "arcface"]
)
def test_gradcheck(name):
    options, numbers = SETTINGS[name]
    x, w, y = problem(3, 5, 4)
    torch.autograd.gradcheck(
        lambda x, w: margin_cross_entropy(x, w, y, Margin(**numbers), chunk=2, **options), (x, w)
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [False, True])
def test_options_mean_what_they_mean_in_torch(reduction, smoothing, weighted, ignore):
    x, w, y = problem()
    weights = torch.rand(len(w), dtype=D) if weighted else None
    if ignore:
        y[1], y[4] = -100, -100
    options = {"reduction": reduction, "label_smoothing": smoothing}
    psi = Margin(shift=0.4)
    dense = F.cross_entropy(margin_logits(x, w, y, psi, scale=9.0), y, weights, **options)
    fused = margin_cross_entropy(x, w, y, psi, scale=9.0, class_weight=weights, chunk=4, **options)
    torch.testing.assert_close(fused, dense)
    upstream = torch.randn_like(dense)
    expected = torch.autograd.grad(dense, (x, w), upstream)
    torch.testing.assert_close(torch.autograd.grad(fused, (x, w), upstream), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_soft_targets_without_margin(weighted):
    x, w, _ = problem()
    q = torch.softmax(torch.randn(len(x), len(w), dtype=D), 1)
    weights = torch.rand(len(w), dtype=D) if weighted else None
    dense = F.cross_entropy(margin_logits(x, w, scale=9.0), q, weights, label_smoothing=0.1)
    fused = margin_cross_entropy(
        x, w, q, Margin(), scale=9.0, class_weight=weights, label_smoothing=0.1, chunk=4
    )
    torch.testing.assert_close(fused, dense)
    expected = torch.autograd.grad(dense, (x, w))
    torch.testing.assert_close(torch.autograd.grad(fused, (x, w)), expected)


def test_any_callable_as_g_and_as_psi():
    x, w, y = problem()
    cube = torch.nn.Module()  # an activation with a parameter of its own
    cube.p = torch.nn.Parameter(torch.tensor(2.0, dtype=D))
    cube.forward = lambda c: c * c * c + cube.p * c
    for kind, parts in ((torch.tanh, [x, w]), (cube, [x, w, cube.p])):
        psi = lambda c, kind=kind: kind(c) - 0.2  # noqa: E731
        dense = F.cross_entropy(margin_logits(x, w, y, psi, kind=kind), y)
        fused = margin_cross_entropy(x, w, y, psi, kind=kind, chunk=4)
        torch.testing.assert_close(fused, dense)
        expected = torch.autograd.grad(dense, parts)
        torch.testing.assert_close(torch.autograd.grad(fused, parts), expected)


def test_gradient_semantics_share_the_forward():
    x, w, y = problem()
    w.data = F.normalize(w.data)
    psi, loss, grads = Margin(m=4), {}, {}
    for name in ("exact", "detached", "caffe"):
        dense = F.cross_entropy(margin_logits(x, w, y, psi, lam=2.0, gradient=name), y)
        fused = margin_cross_entropy(x, w, y, psi, lam=2.0, gradient=name, chunk=4)
        loss[name], grads[name] = fused, torch.autograd.grad(fused, (x, w))
        torch.testing.assert_close(grads[name], torch.autograd.grad(dense, (x, w)))
    assert loss["exact"].item() == pytest.approx(loss["detached"].item(), abs=1e-12)
    assert loss["exact"].item() == pytest.approx(loss["caffe"].item(), abs=1e-12)
    assert not torch.allclose(grads["exact"][0], grads["detached"][0])

    # detached: the margin is a constant in front of the plain scores
    plain = margin_logits(x, w)
    constant = (margin_logits(x, w, y, psi, lam=2.0) - plain).detach()
    expected = torch.autograd.grad(F.cross_entropy(plain + constant, y), (x, w))
    torch.testing.assert_close(grads["detached"], expected)


def test_caffe_gradient_of_rows_that_are_not_unit():
    x, w, y = problem()
    w.data *= 3
    for labels in (y, torch.softmax(torch.randn(len(x), len(w), dtype=D), 1)):
        psi = None if labels.is_floating_point() else Margin(m=4)
        dense = F.cross_entropy(margin_logits(x, w, labels, psi, gradient="caffe"), labels)
        fused = margin_cross_entropy(x, w, labels, psi, gradient="caffe", chunk=4)
        got, expected = torch.autograd.grad(fused, (x, w)), torch.autograd.grad(dense, (x, w))
        torch.testing.assert_close(got, expected)


def test_caffe_gradient_is_that_of_the_released_layer():
    """m = 2, coefficients of w and x as in 2.12 with |w| = 1, then divided by their hypotenuse."""
    x, w, y = problem()
    w.data = F.normalize(w.data)
    scores = margin_logits(x, w, y, Margin(m=2), lam=2.0, gradient="caffe").detach()
    top = (torch.softmax(scores, 1) - F.one_hot(y, len(w))) / len(x)  # dL/df
    grad_x = torch.zeros_like(x)
    for i in range(len(x)):
        for j in range(len(w)):
            if j != y[i]:
                grad_x[i] += top[i, j] * w[j]
                continue
            length, sign = x[i].norm(), torch.sign(x[i] @ w[j])
            cos = x[i] @ w[j] / length
            along_w, along_x = 4 * sign * cos, -(2 * sign * cos**2 + 1) / length
            size = (along_w**2 + along_x**2).sqrt()
            grad_x[i] += top[i, j] * (along_w * w[j] + along_x * x[i]) / size / 3
            grad_x[i] += top[i, j] * w[j] * 2 / 3
    loss = margin_cross_entropy(x, w, y, Margin(m=2), lam=2.0, gradient="caffe", chunk=4)
    got = torch.autograd.grad(loss, (x, w))
    torch.testing.assert_close(got[0], grad_x.detach())
    torch.testing.assert_close(got[1], (top.T @ x).detach())


def test_l_softmax_m_2_is_2_11_to_2_13():
    x, w, y = problem()
    f = margin_logits(x, w, y, Margin(m=2), unit=False)
    for i, j in enumerate(y.tolist()):
        dot, nx, nw = x[i] @ w[j], x[i].norm(), w[j].norm()
        k = 0 if dot > 0 else 1
        sign = (-1) ** k
        expected = sign * 2 * dot**2 / (nw * nx) - (2 * k + sign) * nw * nx  # 2.11
        torch.testing.assert_close(f[i, j], expected, rtol=1e-9, atol=1e-9)
        got_x, got_w = torch.autograd.grad(f[i, j], (x, w), retain_graph=True)
        by_x = sign * (4 * dot * w[j] / (nw * nx) - 2 * dot**2 * x[i] / (nw * nx**3))
        by_x = by_x - (2 * k + sign) * nw * x[i] / nx  # 2.12
        by_w = sign * (4 * dot * x[i] / (nw * nx) - 2 * dot**2 * w[j] / (nx * nw**3))
        by_w = by_w - (2 * k + sign) * nx * w[j] / nw  # 2.13
        torch.testing.assert_close(got_x[i], by_x, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(got_w[j], by_w, rtol=1e-7, atol=1e-7)


def test_every_chunk_size_gives_the_same():
    x, w, y = problem(4, 13)
    whole = margin_cross_entropy(x, w, y, Margin(m=3), label_smoothing=0.1)
    expected = torch.autograd.grad(whole, (x, w))
    for chunk in (1, 2, 5, 13, 100):
        loss = margin_cross_entropy(x, w, y, Margin(m=3), label_smoothing=0.1, chunk=chunk)
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), expected)


def test_large_scores_do_not_overflow():
    x, w, y = problem(4, 9, dtype=torch.float32)
    loss = margin_cross_entropy(1e4 * x, 1e4 * w, y, Margin(m=4), unit=False, chunk=2)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (x, w)))


def test_a_later_chunk_may_be_far_above_the_first():
    x = torch.ones(2, 3, requires_grad=True)
    w = torch.tensor([1.0, 3.0, 1000.0, -2000.0, 1001.0])[:, None].expand(5, 3).clone()
    w.requires_grad_()
    y = torch.tensor([0, 2])
    for chunk in (1, 2, 5):
        fused = margin_cross_entropy(x, w, y, unit=False, chunk=chunk)
        dense = F.cross_entropy(margin_logits(x, w, y, unit=False), y)
        torch.testing.assert_close(fused, dense)
        expected = torch.autograd.grad(dense, (x, w))
        got = torch.autograd.grad(fused, (x, w))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type(dtype):
    x, w, y = problem(classes=200)
    y[0] = 156 if dtype == torch.uint8 else 1  # -100 in 8 bits, yet not ignored
    psi = Margin(m=2)
    expected = margin_cross_entropy(x, w, y, psi)
    torch.testing.assert_close(margin_cross_entropy(x, w, y.to(dtype), psi), expected)
    torch.testing.assert_close(margin_logits(x, w, y.to(dtype), psi), margin_logits(x, w, y, psi))


def test_an_empty_batch():
    x, w, _ = problem()
    none = x.detach()[:0].requires_grad_()
    loss = margin_cross_entropy(none, w, torch.zeros(0, dtype=torch.long), reduction="sum")
    grads = torch.autograd.grad(loss, (none, w))
    assert loss == 0 and grads[0].shape == (0, 5) and (grads[1] == 0).all()


# --- sampled classes -----------------------------------------------------------------------------


def test_a_sample_has_all_labels_once():
    labels = torch.tensor([5, 5, -1, 0, 99])
    index, stands_for = sample_classes(labels, 100, 0.1)
    assert len(index) == 3 + 10 and len(index.unique()) == 13
    assert torch.equal(index, index.sort().values)
    assert {0, 5, 99} <= set(index.tolist())
    for c, weight in zip(index.tolist(), stands_for.exp().tolist(), strict=True):
        assert weight == pytest.approx(1.0 if c in (0, 5, 99) else 97 / 10)


@pytest.mark.parametrize(
    ("labels", "classes", "share", "size"),
    [
        (torch.full((512,), 3), 1000, 0.01, 11),  # the different labels count, not the batch
        (torch.arange(50), 100, 0.1, 55),
        (torch.arange(99), 100, 0.01, 100),  # at least one other
        (torch.arange(100), 100, 0.01, 100),
        (torch.tensor([-1]), 7, 1.0, 7),
    ],
)
def test_a_sample_is_the_labels_and_a_share_of_the_rest(labels, classes, share, size):
    index, stands_for = sample_classes(labels, classes, share)
    assert len(index) == size
    assert stands_for.exp().sum().item() == pytest.approx(classes)


def test_a_sample_of_all_classes_is_the_loss():
    x, w, y = problem()
    options = {"scale": 7.0, "chunk": 4}
    whole = margin_cross_entropy(x, w, y, Margin(shift=0.3), **options)
    sampled = margin_cross_entropy(x, w, y, Margin(shift=0.3), sample=1.0, **options)
    torch.testing.assert_close(sampled, whole)
    expected = torch.autograd.grad(whole, (x, w))
    torch.testing.assert_close(torch.autograd.grad(sampled, (x, w)), expected)


@pytest.mark.parametrize("labels", [[3, 3, 39], list(range(0, 40, 4))])  # few, and a share's worth
def test_sampled_exponentials_are_right_on_average(labels):
    y, count = torch.tensor(labels), 600
    x, w, _ = (t.detach() for t in problem(len(y), 40))
    whole, _, _ = class_logsumexp(x, w, y)
    draws = []
    for _ in range(count):
        index, offset = sample_classes(y, 40, 0.25)
        draws.append(class_logsumexp(x, w, y, index=index, offset=offset)[0].exp())
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / count**0.5
    assert ((mean - whole.exp()).abs() < 4 * error).all()


def test_sampled_loss_is_that_of_the_drawn_classes():
    x, w, y = problem(3, 40)
    options = {"scale": 7.0, "generator": torch.Generator().manual_seed(3)}
    loss = margin_cross_entropy(
        x, w, y, Margin(subtract=0.2), sample=0.3, sample_correction=False, **options
    )
    index, _ = sample_classes(y, 40, 0.3, torch.Generator().manual_seed(3))
    place = torch.searchsorted(index, y)
    dense = F.cross_entropy(
        margin_logits(x, w[index], place, Margin(subtract=0.2), scale=7.0), place
    )
    torch.testing.assert_close(loss, dense)
    got, expected = torch.autograd.grad(loss, (x, w)), torch.autograd.grad(dense, (x, w))
    torch.testing.assert_close(got, expected)
    outside = torch.ones(40, dtype=torch.bool).index_fill(0, index, False)
    assert (got[1][outside] == 0).all()


# --- arguments -----------------------------------------------------------------------------------


def test_k_may_be_a_number():
    x, w, y = problem()
    by_tensor = margin_cross_entropy(x, w, y, kind="sigmoid", k=torch.tensor(0.3, dtype=D))
    got = margin_cross_entropy(x, w, y, kind="sigmoid", k=0.3)
    torch.testing.assert_close(got, by_tensor, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        got, F.cross_entropy(margin_logits(x, w, y, kind="sigmoid", k=0.3), y)
    )
    with pytest.raises(ValueError, match="k > 0"):
        margin_cross_entropy(x, w, y, kind="sigmoid", k=-0.3)


@pytest.mark.parametrize("ignored", [-1, 0, 255])
def test_any_label_can_be_ignored(ignored):
    x, w, y = problem()
    y[1], y[4] = ignored, ignored
    logits = margin_logits(x, w, y, Margin(m=3), ignore_index=ignored)
    keep = (y != ignored).nonzero().flatten()
    torch.testing.assert_close(logits[[1, 4]], margin_logits(x, w)[[1, 4]])  # no margin there
    torch.testing.assert_close(logits[keep], margin_logits(x[keep], w, y[keep], Margin(m=3)))
    dense = F.cross_entropy(logits, y, ignore_index=ignored)
    fused = margin_cross_entropy(x, w, y, Margin(m=3), ignore_index=ignored)
    torch.testing.assert_close(fused, dense)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 7, 1]), r"label 7 \(sample 1\) is outside 0..6: .* C = 7"),
        (torch.tensor([0, 1, -1]), r"label -1 \(sample 2\)"),
        (torch.rand(3, 7), "soft targets have no one target class"),
    ],
)
def test_logits_refuse_what_the_loss_refuses(labels, message):
    x, w, _ = problem(3, 7)
    with pytest.raises(ValueError, match=message):
        margin_logits(x, w, labels, Margin(m=2))


def call(**change):
    x, w, y = problem(3, 7, dtype=torch.float32)
    given = {"features": x, "weight": w, "labels": y, "psi": Margin(m=2), **change}
    return margin_cross_entropy(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 7, 1])}, r"label 7 \(sample 1\) is outside 0..6: .* C = 7"),
        ({"labels": torch.tensor([0, -1, 1])}, r"label -1 \(sample 1\)"),
        ({"labels": torch.tensor([0, 1])}, r"expected labels of shape \(3,\)"),
        ({"features": torch.randn(3, 4)}, r"expected features of shape \(B, 5\)"),
        ({"labels": torch.rand(3, 7), "gradient": "caffe"}, "need gradient .exact. or .detached."),
        ({"labels": torch.rand(3, 6), "psi": None}, r"expected labels of shape \(3, 7\)"),
        ({"class_weight": torch.ones(3)}, r"class_weight of shape \(7,\)"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"label_smoothing": 0.1, "sample": 0.5}, "need the scores of all classes"),
        ({"sample": 1.5}, "share of the classes"),
        ({"reduction": "average"}, "'mean', 'sum' or 'none'"),
        ({"gradient": "tensorflow"}, "exact, detached, caffe"),
        ({"gradient": "caffe", "kind": "linear"}, "released A-Softmax layer"),
    ],
)
def test_errors_say_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        call(**change)
