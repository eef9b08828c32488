"""State as tensors and JSON: exact, and nothing that could run code."""

import json
import random

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from hypersphere.training.run.packing import pack, rng_state, set_rng_state, unpack

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
states = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(states)
def test_any_plain_state_survives_json(state):
    tree, tensors = pack(state)
    assert unpack(json.loads(json.dumps(tree)), tensors) == state


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_optimizer_state_survives(make):
    net = torch.nn.Linear(3, 2)
    optimizer = make(
        net.parameters(), lr=0.1, **({"momentum": 0.9} if make is torch.optim.SGD else {})
    )
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    tree, tensors = pack(optimizer.state_dict())
    again = unpack(json.loads(json.dumps(tree)), tensors)
    assert again["param_groups"] == optimizer.state_dict()["param_groups"]
    for index, moments in optimizer.state_dict()["state"].items():
        for name, value in moments.items():
            torch.testing.assert_close(again["state"][index][name], value, rtol=0, atol=0)


def test_objects_are_refused():
    with pytest.raises(TypeError, match="cannot save a function at 'a.0'"):
        pack({"a": [lambda: None]})


def test_random_generators_go_on_where_they_were():
    tree, tensors = pack(rng_state())

    def draw():
        return random.random(), np.random.rand(), float(torch.rand(())), random.gauss(0, 1)  # noqa: NPY002

    first = draw()
    draw()
    set_rng_state(unpack(json.loads(json.dumps(tree)), tensors))
    assert draw() == first
