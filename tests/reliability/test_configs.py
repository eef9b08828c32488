"""Mutated settings: refused with a sentence, or read as they are and trained to finite numbers."""

import math

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from reliability import tally
from reliability.configs import Kitchen, Workshop, mutations, recipes
from reliability.judging import WRONG

READ, TRAINED = 520, 240  # examples of the slow tests
HERE = "tests/reliability/test_configs.py"


def tried(place, files, count):
    """`count` mutations of the files, judged; one that is judged wrong is reduced and shown."""
    cases = []

    @seed(" ".join(file.name for file in files))  # others for each recipe
    @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
    @given(mutations(st.sampled_from(files)))
    def judge(mutation):
        case = place.judge(mutation)
        cases.append(case)
        assert case.verdict != WRONG, case.detail

    judge()
    return cases


def test_a_mutated_recipe(tmp_path):
    assert len(tried(Kitchen(tmp_path), recipes(), 20)) >= 20


@pytest.mark.slow
def test_every_mutated_recipe(tmp_path):
    kitchen, cases = Kitchen(tmp_path), []
    for recipe in recipes():
        cases += tried(kitchen, [recipe], math.ceil(READ / len(recipes())))
    tally.note_cases("config, read", cases, f"{HERE}::test_every_mutated_recipe")
    assert len(cases) >= 500 and len({case.damage for case in cases}) == len(recipes())


def test_a_mutated_config_is_trained(tmp_path):
    workshop = Workshop(tmp_path)
    assert len(tried(workshop, workshop.files, 15)) >= 15


@pytest.mark.slow
def test_every_task_is_trained_with_mutated_configs(tmp_path):
    workshop, cases = Workshop(tmp_path), []
    for file in workshop.files:
        cases += tried(workshop, [file], TRAINED // len(workshop.files))
    test = f"{HERE}::test_every_task_is_trained_with_mutated_configs"
    tally.note_cases("config, trained", cases, test)
    assert {case.damage for case in cases} == {file.stem for file in workshop.files}
