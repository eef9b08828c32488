"""Paired differences against scipy's own test, the rule of the verdict, and bad input."""

import math

import pytest
from scipy import stats

from hypersphere.evaluation.paired import PairedDifference, paired_difference, verdict

A, B = [27.0, 26.8, 27.4, 26.1, 28.0], [27.6, 29.1, 27.9, 26.0, 28.8]


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_against_scipy(confidence):
    found = paired_difference(A, B, confidence)
    interval = stats.ttest_rel(A, B).confidence_interval(confidence)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.mean == pytest.approx(sum(A) / 5 - sum(B) / 5)
    assert found.pairs == 5


def test_one_pair_tells_nothing():
    found = paired_difference([1.0], [2.0])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert verdict(found, "lower") == "open"


@pytest.mark.parametrize(
    ("low", "high", "claimed", "expected"),
    [
        (-2.0, -1.0, "lower", "holds"),
        (-2.0, -1.0, "higher", "reversed"),
        (1.0, 2.0, "lower", "reversed"),
        (1.0, 2.0, "higher", "holds"),
        (-1.0, 2.0, "lower", "open"),
        (0.0, 2.0, "higher", "open"),
    ],
)
def test_verdict(low, high, claimed, expected):
    assert verdict(PairedDifference((low + high) / 2, low, high, 5), claimed) == expected


def test_equal_differences_have_a_narrow_interval():
    found = paired_difference([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert (found.low, found.high) == (-1.0, -1.0)
    assert verdict(found, "lower") == "holds"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0], [1.0, 2.0], "as many values of the method as of the baseline"),
        ([], [], "at least one"),
        ([math.nan], [1.0], "finite values"),
    ],
)
def test_bad_input(a, b, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(a, b)


def test_bad_settings():
    with pytest.raises(ValueError, match="share in"):
        paired_difference(A, B, 95)
    with pytest.raises(ValueError, match="'lower' or 'higher'"):
        verdict(PairedDifference(0, 0, 0, 1), "better")
