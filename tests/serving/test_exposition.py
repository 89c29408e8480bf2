"""Pages in Prometheus's text format and in OpenMetrics."""

import math

import pytest

from serving.exposition import Sample, parse


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("m 1", Sample(name="m", value=1), id="without labels"),
        pytest.param("m{} 1", Sample(name="m", value=1), id="with empty labels"),
        pytest.param('m{a="x",} 1\r', Sample(name="m", labels={"a": "x"}, value=1), id="a comma and CRLF at the end"),
        pytest.param('m{a="x"} 1 1764356400123', Sample(name="m", labels={"a": "x"}, value=1), id="milliseconds"),
        pytest.param("m 1 1764356400.123", Sample(name="m", value=1), id="seconds with a fraction"),
        pytest.param("m 1 1.7643564e+09", Sample(name="m", value=1), id="seconds with an exponent"),
        pytest.param('m_total 5 # {trace_id="x"} 0.67 1.7e9', Sample(name="m_total", value=5), id="an exemplar"),
        pytest.param(
            'm{a="x"} 5 1.7e9 # {b="y"} 1', Sample(name="m", labels={"a": "x"}, value=5), id="time and exemplar"
        ),
        pytest.param(
            r'm{a="}b # c 5",d="\"}\\\n"} 5',
            Sample(name="m", labels={"a": "}b # c 5", "d": '"}\\\n'}, value=5),
            id="characters of the format in values",
        ),
        pytest.param(
            'm{a="x\u2028y\x85z\x0c"} 5',
            Sample(name="m", labels={"a": "x\u2028y\x85z\x0c"}, value=5),
            id="other ends of lines in a value",
        ),
        pytest.param("m +Inf", Sample(name="m", value=math.inf), id="infinity"),
    ],
)
def test_a_line_is_read(line: str, expected: Sample) -> None:
    page = f"# HELP m text\n# TYPE m gauge\n\n{line}\n# EOF\n"
    assert list(parse(page)) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "m 1_000",
        "m \u0661\u0662",
        "m ",
        'm{a="x"}',
        'm{a="x',
        'm{a="x"',
        'm{a="x"} one',
        "m 1 now",
        "m 1 2 3",
        '{"m",a="x"} 1',
        "<html>",
    ],
)
def test_a_line_that_is_not_a_sample_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        list(parse(f"other 1\n{line}\n"))


def test_a_page_without_samples_has_none() -> None:
    assert list(parse("")) == list(parse("# EOF\n")) == []


def test_a_value_that_is_not_a_number_is_named() -> None:
    with pytest.raises(ValueError, match="expected a number as the value of gpu_power, got 'N/A'"):
        list(parse('gpu_power{gpu="0"} N/A\n'))
