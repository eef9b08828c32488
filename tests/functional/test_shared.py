"""Tensors that are made once serve every mode."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hypersphere.functional._kernels.orthogonal.packed import packed_length
from hypersphere.functional._kernels.shared import made_once
from hypersphere.functional.orthogonalize import apply_packed, pack_skew, unpacked_skew


def test_made_once_and_in_no_mode():
    calls = []

    @made_once(maxsize=2)
    def two(count):
        calls.append(count)
        return torch.full((count,), 2.0)

    with torch.inference_mode():
        first = two(3)
    assert not first.is_inference() and two(3) is first and calls == [3]
    with FakeTensorMode():
        assert two(4) is not two(4)
    assert type(two(4)) is torch.Tensor and calls == [3, 4, 4, 4]


def test_rotations_after_inference():
    with torch.inference_mode():
        pack_skew(torch.randn(37, 37)), unpacked_skew(torch.randn(packed_length(37)), 37)
    U = torch.randn(37, 37, requires_grad=True)
    pack_skew(U).sum().backward()
    assert torch.equal(U.grad, torch.ones(37, 37).triu(1))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_rotations_after_tensors_without_numbers(lead):
    numbers, V = torch.randn(*lead, packed_length(39)), torch.randn(*lead, 39, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        apply_packed(numbers, V, "cayley")
    assert apply_packed(numbers, V, "cayley").norm().item() == pytest.approx(V.norm().item(), 1e-4)
