"""What the router reads of a body by pattern is what a JSON reader finds, or nothing. Python reads patterns alike."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.patterns import MODEL_EARLY, MODEL_LATE, QUESTION, START, tokens

WORDS = st.sampled_from(
    [
        "",
        "model",
        '"model": "evil"',
        '{"model": "evil"}',
        "back\\slash\\",
        '"',
        "é\n",
        '\\", "model": "evil"}',
        "x" * 40,
    ]
)
SCALARS = st.one_of(WORDS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.one_of(SCALARS, st.dictionaries(WORDS, SCALARS, max_size=2), st.lists(SCALARS, max_size=2))
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": VALUES}, optional={"name": WORDS}),
    max_size=3,
)
BODIES = st.tuples(
    st.lists(st.tuples(WORDS, VALUES), max_size=3),
    st.permutations([("model", "chat"), ("messages", None), ("prompt", None)]),
    MESSAGES,
    st.lists(st.tuples(WORDS, VALUES), max_size=2),
)


def _taken(pattern: str, text: str) -> tuple[str, ...]:
    found = re.match(pattern.encode(), text.encode())
    assert found, "it matches every text: else HAProxy would go on with all of the body"
    assert found.end() == len(text.encode())
    return tuple((group or b"").decode() for group in found.groups())


def _body(fields: list[tuple[str, Any]], indent: int | None = None) -> str:
    """JSON of these fields in this order; two of one name are both in it."""
    return "{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v, indent=indent)}" for k, v in fields) + "}"


def _raw(value: object) -> str:
    return json.dumps(value)[1:-1] if isinstance(value, str) else ""


@given(BODIES, st.sampled_from([None, 2]))
def test_a_pattern_finds_what_the_first_field_says_or_nothing(parts: Any, indent: int | None) -> None:
    before, order, messages, after = parts
    named = [(name, messages if name == "messages" else value or "start") for name, value in order]
    fields = [*before, *named, *after]
    text = _body(fields, indent)
    model = next(value for name, value in fields if name == "model")
    for pattern in (MODEL_EARLY, MODEL_LATE):
        assert _taken(pattern, text)[0] in ("", _raw(model))
    role, start = _taken(START, text)
    first = messages[0] if messages else {}
    prompt = next(value for name, value in fields if name == "prompt")
    assert (role, start) in {("", ""), ("", _raw(prompt)), (first.get("role", ""), _raw(first.get("content")))}
    if question := _taken(QUESTION, text)[0]:
        assert first["role"] == "system"
        assert question == _raw(messages[1]["content"])


@given(st.text(alphabet='{}[]":,\\ model"chat\n', max_size=60), st.text(alphabet='{}[]":,\\ aé\n', max_size=20))
def test_text_that_is_no_json_is_no_trouble(head: str, tail: str) -> None:
    text = head + '"model": "chat"' + tail
    for pattern in (MODEL_EARLY, MODEL_LATE, START, QUESTION, tokens("prompt_tokens")):
        _taken(pattern, text)


USER = '"messages": [{"role": "user", "content": "a \\"b\\""}]'
SYSTEM = '"messages":[{"role":"system","content":"be \\\\ kind"},{"role":"user","content":"why?"}]'


@pytest.mark.parametrize(
    ("body", "early", "late", "start", "question"),
    [
        ('{"model": "chat", ' + USER + "}", "chat", "", ("user", 'a \\"b\\"'), ""),
        ("{" + SYSTEM + ', "model": "chat", "n": 1, "stream": true}', "", "chat", ("system", "be \\\\ kind"), "why?"),
        ('{"temperature": 1e-3, "model": "chat", "prompt": "go"}', "chat", "chat", ("", "go"), ""),
        ('{"model": "other", "model": "chat"}', "other", "other", ("", ""), ""),
        ('{"metadata": {"model": "other"}, "model": "chat"}', "", "", ("", ""), ""),
        ('{"messages": [], "extra": {"model": "other"}}', "", "", ("", ""), ""),
        ('{"a\\"model": "other", "model": "chat"}', "", "chat", ("", ""), ""),
        ('{"model": "c\\u0068at"}', "", "", ("", ""), ""),
        ('{"model": ["chat"]}', "", "", ("", ""), ""),
        ('{"model": "cha', "", "", ("", ""), ""),
        ('{"messages": [{"role": "user", "content": "cut he', "", "", ("user", "cut he"), ""),
        ('{"messages": [{"role": "user", "content": [{"text": "x"}]}]}', "", "", ("", ""), ""),
        ("", "", "", ("", ""), ""),
    ],
    ids=[
        "model-first", "model-last", "prompt", "two-models", "nested-before", "nested-after", "quote-in-key",
        "escape", "list", "cut-in-model", "cut-in-text", "parts", "empty",
    ],
)  # fmt: skip
def test_usual_forms_are_found_and_others_are_left_to_the_json_reader(
    body: str, early: str, late: str, start: tuple[str, str], question: str
) -> None:
    assert _taken(MODEL_EARLY, body) == (early,)
    assert _taken(MODEL_LATE, body) == (late,)
    assert _taken(START, body) == start
    assert _taken(QUESTION, body) == (question,)


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ('{"choices": [], "usage": {"prompt_tokens": 1234567, "completion_tokens": 3}}', "1234567"),
        ('{"choices": [{"text": "\\"prompt_tokens\\": 9"}], "usage": {\n"prompt_tokens" :\t7}}', "7"),
        ('{"usage": {"prompt_tokens_details": {"cached": 4}}}', ""),
        ('{"usage": {"prompt_tokens": null}}', ""),
        ('{"choices": [{"text": "\\"prompt_tokens\\": 9"}]}', ""),
        ("12", ""),
    ],
    ids=["usage", "in-a-text-and-spaced", "only-details", "null", "in-a-text-alone", "a-bare-number"],
)
def test_tokens_are_read_from_the_usage_alone(answer: str, count: str) -> None:
    assert _taken(tokens("prompt_tokens"), answer) == (count,)
