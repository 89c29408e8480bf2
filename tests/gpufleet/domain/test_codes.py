"""Stored codes, their texts, and codes of a newer release."""

import copy
import json
import pickle
import re

import pytest

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.brakes import BrakeKind
from gpufleet.domain.codes import Code
from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.ledger.migrations.versions.v0006_codes import KINDS, REASONS

EVERY: list[type[Code]] = [Action, Reason, OutcomeKind, BrakeKind, ActivityKind]


@pytest.mark.parametrize("codes", EVERY)
def test_codes_fit_their_columns_and_each_has_a_unique_sentence(codes: type[Code]) -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value) for code in codes)
    assert max(len(code.value) for code in codes) <= (64 if codes is Reason else 16)
    assert len({code.sentence for code in codes}) == len(codes)
    assert all(code.known and codes(code.value) is code for code in codes)


@pytest.mark.parametrize("codes", EVERY)
def test_an_unknown_code_is_kept_and_equals_no_known_one(codes: type[Code]) -> None:
    unknown = codes("of_a_newer_release")
    assert unknown.value == str(unknown) == "of_a_newer_release", "it can be written back"
    assert unknown.sentence == "unknown (of_a_newer_release)" and not unknown.known
    assert unknown not in list(codes) and all(unknown != code for code in codes)
    assert unknown == codes("of_a_newer_release") and len({unknown, codes("of_a_newer_release")}) == 1
    assert unknown != codes("of_another_one")
    for twin in (copy.deepcopy(unknown), pickle.loads(pickle.dumps(unknown))):
        assert twin == unknown and twin.sentence == unknown.sentence and not twin.known
    assert json.loads(json.dumps({"code": unknown})) == {"code": "of_a_newer_release"}
    assert codes("").sentence == "unknown ()"


def test_every_code_of_old_ledgers_stays_known() -> None:
    assert {*REASONS.values()} <= {reason.value for reason in Reason}
    assert {*KINDS.values()} <= {kind.value for kind in OutcomeKind}
