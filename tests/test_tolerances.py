"""The tolerances themselves: every type sees errors of a few of its roundings, and no more."""

import pytest
import torch

from tolerances import TOLERANCES, close


@pytest.mark.parametrize("kind", TOLERANCES)
def test_a_rounding_passes_and_a_hundredfold_does_not(kind):
    x = torch.linspace(-1, 1, 11, dtype=torch.float64)
    close(x.to(kind), x)
    rtol, atol = TOLERANCES[kind]
    with pytest.raises(AssertionError, match="not close"):
        close(x.to(kind), x + 3 * (rtol + atol))
    close(x.to(kind), x + 3 * (rtol + atol), scale=5 + 5 * rtol / atol)  # also where x is 0
    with pytest.raises(AssertionError):
        close(torch.full((1,), torch.nan, dtype=kind), x[:1])


def test_finer_types_have_finer_tolerances():
    kinds = sorted(TOLERANCES, key=lambda kind: torch.finfo(kind).eps)
    assert [TOLERANCES[kind] for kind in kinds] == sorted(TOLERANCES.values())
    for kind, (rtol, _) in TOLERANCES.items():
        assert rtol > 2 * torch.finfo(kind).eps
