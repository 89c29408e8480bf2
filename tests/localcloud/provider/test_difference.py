"""How the local provider compares two programs, and a program with the cloud."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcloud.provider.difference import as_given, changed_keys, differences

VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
PROPERTIES = st.dictionaries(st.text("abcd", min_size=1, max_size=2), VALUES, max_size=4)


def asset(digest: str, path: str) -> dict[str, str]:
    signature = {"4dabf18193072939515e22adb298388d": "c44067f5952c0a294b673a41bacd8c17"}
    return {**signature, "hash": digest, "path": path}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="same"),
        pytest.param({"a": 1}, {"a": 2}, [("a", "UPDATE")], id="changed"),
        pytest.param({}, {"a": 2}, [("a", "ADD")], id="added"),
        pytest.param({"a": 2}, {}, [("a", "DELETE")], id="removed"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, [("a.c", "ADD")], id="inside-an-object"),
        pytest.param({"a": [1, 2]}, {"a": [1, 3, 4]}, [("a[1]", "UPDATE"), ("a[2]", "ADD")], id="inside-a-list"),
        pytest.param({"t": {"g:p": "x"}}, {"t": {"g:p": "y"}}, [('t["g:p"]', "UPDATE")], id="odd-key"),
        pytest.param({"a": [1]}, {"a": {"b": 1}}, [("a", "UPDATE")], id="other-kind"),
        pytest.param({"s": asset("1", "/x")}, {"s": asset("1", "/y")}, [], id="same-bytes-elsewhere"),
        pytest.param({"s": asset("1", "/x")}, {"s": asset("2", "/x")}, [("s", "UPDATE")], id="other-bytes"),
    ],
)
def test_each_difference_is_named(old: dict[str, Any], new: dict[str, Any], expected: list[Any]) -> None:
    assert list(differences(old, new)) == expected
    assert bool(changed_keys(old, new)) == bool(expected)


@given(PROPERTIES, PROPERTIES)
def test_differences_are_in_changed_keys_and_equal_inputs_have_none(old: dict[str, Any], new: dict[str, Any]) -> None:
    places = {path.split(".")[0].split("[")[0] for path, _ in differences(old, new)}
    assert places == changed_keys(old, new)
    assert list(differences(old, old)) == []


@given(VALUES)
def test_value_equal_to_the_input_is_unchanged(value: Any) -> None:
    assert as_given(value, value) == value


@pytest.mark.parametrize(
    ("declared", "live", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2, "b": 3}, {"a": 2}, id="fields-not-named-have-no-owner"),
        pytest.param({"a": 1, "b": 2}, {"a": 1}, {"a": 1}, id="a-removed-field"),
        pytest.param(["x", "y"], ["y", "x"], ["x", "y"], id="order-of-a-set"),
        pytest.param(["x"], ["x", "z"], ["x", "z"], id="one-more"),
        pytest.param(["x", "y"], ["y"], ["y"], id="one-less"),
        pytest.param([{"k": 1}], [{"k": 2, "more": 3}], [{"k": 2}], id="objects-in-a-list"),
        pytest.param([{"k": 1}], [{"k": 1, "x": 0}, {"k": 5, "x": 0}], [{"k": 1}, {"k": 5}], id="an-object-more"),
        pytest.param('{"a":1}', '{ "a": 1 }', '{"a":1}', id="json-by-meaning"),
        pytest.param('{"a":1}', '{"a":2}', '{"a":2}', id="json-that-differs"),
        pytest.param("x", "y", "y", id="text"),
        pytest.param(2, 5, 5, id="number"),
    ],
)
def test_live_values_are_converted_to_the_form_of_the_program(declared: Any, live: Any, expected: Any) -> None:
    assert as_given(declared, live) == expected
