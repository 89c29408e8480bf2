"""A pattern finds what a JSON reader finds in a body, or nothing. Python's `re` reads the patterns like HAProxy."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.body_patterns import MODEL_EARLY, MODEL_LATE, QUESTION, START, TOKENS
from serving.router.policy import ModelPolicy, RouterPolicy
from serving.router.rules import frontend
from serving.router.settings import RouterSettings
from serving.router.topology import PoolEntry, Topology

TEXTS = st.sampled_from(
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
SCALARS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.one_of(SCALARS, st.dictionaries(TEXTS, SCALARS, max_size=2), st.lists(SCALARS, max_size=2))
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": VALUES}, optional={"name": TEXTS}),
    max_size=3,
)
BODIES = st.tuples(
    st.lists(st.tuples(TEXTS, VALUES), max_size=3),
    st.permutations([("model", "chat"), ("messages", None), ("prompt", None)]),
    MESSAGES,
    st.lists(st.tuples(TEXTS, VALUES), max_size=2),
)


def _taken(pattern: str, text: str) -> tuple[str, ...]:
    found = re.match(pattern.encode(), text.encode())
    assert found, "it matches every text: else HAProxy would use the whole body"
    assert found.end() == len(text.encode())
    return tuple((group or b"").decode() for group in found.groups())


def _body(fields: list[tuple[str, Any]], indent: int | None = None) -> str:
    """Return JSON with these fields in this order; repeated names are kept."""
    return "{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v, indent=indent)}" for k, v in fields) + "}"


def _raw(value: object) -> str:
    return json.dumps(value)[1:-1] if isinstance(value, str) else ""


@given(BODIES, st.sampled_from([None, 2]))
def test_a_pattern_finds_the_first_field_or_nothing(parts: Any, indent: int | None) -> None:
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
def test_text_that_is_not_json_gives_no_match(head: str, tail: str) -> None:
    text = head + '"model": "chat"' + tail
    for pattern in (MODEL_EARLY, MODEL_LATE, START, QUESTION, TOKENS):
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
def test_patterns_match_usual_forms_and_leave_others_to_the_json_reader(
    body: str, early: str, late: str, start: tuple[str, str], question: str
) -> None:
    assert _taken(MODEL_EARLY, body) == (early,)
    assert _taken(MODEL_LATE, body) == (late,)
    assert _taken(START, body) == start
    assert _taken(QUESTION, body) == (question,)


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        ('{"choices": [], "usage": {"prompt_tokens": 1234567, "completion_tokens": 3}}', ("1234567", "3")),
        ('{"usage": {"completion_tokens": 3, "total_tokens": 9, "prompt_tokens": 6}}', ("6", "3")),
        ('{"data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}', ("5", "")),
        ('{"choices": [{"text": "\\"prompt_tokens\\": 9"}], "usage": {\n"prompt_tokens" :\t7}}', ("7", "")),
        ('{"usage": {"prompt_tokens_details": {"cached": 4}}}', ("", "")),
        ('{"usage": {"prompt_tokens": null, "completion_tokens": 3}}', ("", "")),
        ('{"choices": [{"text": "\\"prompt_tokens\\": 9"}]}', ("", "")),
        ("12", ("", "")),
    ],
    ids=[
        "usage", "other-order", "embeddings", "in-a-text-and-spaced", "only-details", "null", "in-a-text-alone",
        "a-bare-number",
    ],
)  # fmt: skip
def test_tokens_are_read_only_from_the_usage(answer: str, counts: tuple[str, str]) -> None:
    assert _taken(TOKENS, answer) == counts


@pytest.mark.parametrize("required", [False, True], ids=["keys-optional", "keys-required"])
def test_a_request_with_relevant_headers_never_takes_the_shortcut(required: bool) -> None:
    """The shortcut knows every header that a later rule reads or removes."""
    topology = Topology(environment="test", pools=(PoolEntry(name="chat", served_name="chat"),))
    policy = RouterPolicy(require_key=required, models={"chat": ModelPolicy(by_cost=("chat", "large"))})
    text = frontend(topology, policy, RouterSettings())
    short, _, later = text.partition("    http-request allow if")
    plain = re.search(r"acl no_special_headers req\.hdr_names -m reg '(.*)'", short)
    assert plain, text
    read = set(re.findall(r"req\.f?hdr(?:_val)?\(([a-z-]+)", later.partition("use_backend")[0]))
    removed = {name.lower() for name in re.findall(r"del-header (\S+)", text)}
    assert {"x-model", "x-max-latency-ms", "x-model-override", "transfer-encoding"} <= read
    assert ("authorization" in read) is not required
    for name in read | {f"{name}pool" if name.endswith("-") else name for name in removed}:
        assert not re.search(plain[1], f"host,{name},content-length"), name
        assert not re.search(plain[1], name), name
    assert re.search(plain[1], "host,content-length,x-request-id,x-session-id,x-models,user-agent")
