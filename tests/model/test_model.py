"""The fencing protocol keeps its promises in every interleaving of its model, and loses one without any rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import model

ALL_S = 600.0
SMALL = ("kill+misjudge", "powercut os", "powercut os kill")
NEEDED = {
    "take": "kill+misjudge",
    "judgefirst": "nonatomic",
    "desc": "nonatomic",
    "claimsync": "powercut",
    "syncread": "powercut",
    "intentsync": "powercut os",
    "ownepoch": "retry probe",
    "outcheck": "kill+misjudge",
}
"""Each rule, and a scenario that goes wrong without it."""


def explored(scenario: str, rules: dict[str, bool]) -> str:
    return model.Model(rules, **model.SCENARIOS[scenario]).check(ALL_S)[0]


@pytest.mark.parametrize("scenario", SMALL)
def test_the_protocol_keeps_every_promise(scenario):
    """In every state that can be reached."""
    assert explored(scenario, model.AMENDED).startswith("passes")


@pytest.mark.torture
@pytest.mark.parametrize("scenario", sorted(set(model.SCENARIOS) - set(SMALL)))
def test_the_protocol_keeps_every_promise_in_larger_worlds(scenario):
    """Up to half a million states each."""
    assert explored(scenario, model.AMENDED).startswith("passes")


@pytest.mark.parametrize("rule", NEEDED)
def test_no_rule_can_be_left_out(rule):
    """Without it some interleaving breaks a promise; so the model can find what it looks for."""
    assert explored(NEEDED[rule], {**model.AMENDED, rule: False}).startswith("VIOLATED")
