"""The cost of a pool by LoRA adapter: the parts add up to the pool's, and unrecorded requests are one of them."""

import csv
import json
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.adapters import NOT_RECORDED, split_by_adapter
from gpufleet.costs.allocation import UseState
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import content_of
from gpufleet.costs.figures import Figure
from gpufleet.costs.teams import Part, TokenBasis, shown_usd
from gpufleet.domain import money
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.teams import TeamReading, TeamUse, add_team_readings
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, fill, read_json, stdout_of

SQL, TAX = "chat:sql", "chat:tax"
ADAPTERS = {SQL: "models/chat-sql", TAX: "models/chat-tax"}
USES = st.builds(
    TeamUse,
    replica_ms=st.integers(0, 10**9),
    tokens_in=st.integers(0, 10**9),
    tokens_out=st.integers(0, 10**9),
    unmetered=st.integers(0, 1),
)


def pool_of(usd: int, prompt: int | None = None, generation: int | None = None) -> Figure:
    """A pool's figure with this cost."""
    figure = Figure(tokens=Tokens(prompt=prompt, generation=generation))
    figure.amounts[UseState.USED] = Decimal(usd * 3600)
    return figure


def split(whole: Figure, **uses: TeamUse) -> dict[str, tuple[str, Decimal, Tokens]]:
    named = {name.replace("_", ":").removesuffix("none"): use for name, use in uses.items()}
    shares = split_by_adapter("chat", whole, named, ADAPTERS)
    found = zip(shares, shown_usd(shares), strict=True)
    return {share.name: (share.part.value, usd, share.figure.tokens) for share, usd in found}


def test_the_cost_is_split_by_the_engine_seconds_of_each_requested_model() -> None:
    found = split(
        pool_of(100, 1_000, 100),
        chat=TeamUse(replica_ms=500, tokens_in=600, tokens_out=60),
        chat_sql=TeamUse(replica_ms=300, tokens_in=300, tokens_out=10),
        chat_tax=TeamUse(replica_ms=200, tokens_in=100, tokens_out=30),
    )
    assert found == {
        "chat": ("model", 50, Tokens(prompt=600, generation=60)),
        TAX: ("adapter", 20, Tokens(prompt=100, generation=30)),
        SQL: ("adapter", 30, Tokens(prompt=300, generation=10)),
    }


def test_tokens_that_only_the_engines_counted_are_charged_to_no_adapter() -> None:
    # 200 weighted tokens of 400 were recorded, so half of the cost was not
    found = split(pool_of(100, 200, 50), chat_sql=TeamUse(replica_ms=500, tokens_in=100, tokens_out=25))
    assert found[SQL] == ("adapter", 50, Tokens(prompt=100, generation=25))
    assert found[NOT_RECORDED] == ("not-recorded", 50, Tokens(prompt=100, generation=25))
    assert found[TAX] == ("adapter", 0, Tokens(prompt=0, generation=0))


def test_requests_without_a_known_model_name_are_not_recorded() -> None:
    found = split(
        pool_of(100, 20, 2),
        chat=TeamUse(replica_ms=300, tokens_in=10, tokens_out=1),
        none=TeamUse(replica_ms=100, tokens_in=10, tokens_out=1),
    )
    assert [usd for _, usd, _ in found.values()] == [75, 0, 0, 25]
    assert found[NOT_RECORDED][2] == Tokens(prompt=10, generation=1)


def test_streams_without_usage_keep_their_cost_and_have_estimated_tokens() -> None:
    uses = {SQL: TeamUse(replica_ms=300, unmetered=3), "chat": TeamUse(replica_ms=100, tokens_in=10, tokens_out=1)}
    shares = split_by_adapter("chat", pool_of(100, 400, 40), uses, [SQL])
    assert {share.counted for share in shares} == {TokenBasis.ESTIMATED}
    assert [(share.name, share.figure.tokens.prompt) for share in shares] == [("chat", 100), (SQL, 300)]


@pytest.mark.parametrize(
    ("prompt", "generation"),
    [
        pytest.param(None, None, id="the engines' tokens are unknown"),
        pytest.param(1_000, None, id="their output tokens are unknown"),
        pytest.param(50, 100, id="the router recorded more input"),
        pytest.param(1_000, 5, id="the router recorded more output"),
    ],
)
def test_tokens_are_estimated_where_the_engines_did_not_count_what_was_recorded(
    prompt: int | None, generation: int | None
) -> None:
    uses = {"chat": TeamUse(replica_ms=300, tokens_in=60, tokens_out=6), SQL: TeamUse(replica_ms=100, tokens_in=40)}
    shares = split_by_adapter("chat", pool_of(100, prompt, generation), uses, [SQL])
    assert {share.counted for share in shares} == {TokenBasis.ESTIMATED}
    for whole, name in ((prompt, "prompt"), (generation, "generation")):
        counts = [getattr(share.figure.tokens, name) for share in shares]
        assert set(counts) == {None} if whole is None else sum(counts) == whole
    assert sum(shown_usd(shares)) == 100


@pytest.mark.parametrize(
    "uses",
    [
        pytest.param({}, id="no records"),
        pytest.param({SQL: TeamUse(replica_ms=5)}, id="records of failed requests only"),
    ],
)
def test_without_recorded_tokens_all_of_the_cost_is_not_recorded(uses: dict[str, TeamUse]) -> None:
    shares = split_by_adapter("chat", pool_of(100, 400, 40), uses, ADAPTERS)
    assert [(share.part, usd) for share, usd in zip(shares, shown_usd(shares), strict=True)] == [
        (Part.ADAPTER, 0), (Part.ADAPTER, 0), (Part.NOT_RECORDED, 100)
    ]  # fmt: skip


@given(
    amounts=st.dictionaries(st.sampled_from(list(UseState)), st.decimals(-(10**6), 10**7, places=12), min_size=1),
    uses=st.dictionaries(st.sampled_from(["", "chat", SQL, TAX, "old"]), USES),
    prompt=st.none() | st.integers(0, 10**12),
    seconds=st.integers(0, 10**9),
)
def test_parts_add_up_to_the_pool_exactly(
    amounts: dict[UseState, Decimal], uses: dict[str, TeamUse], prompt: int | None, seconds: int
) -> None:
    whole = Figure(tokens=Tokens(prompt=prompt, generation=7))
    for state, amount in amounts.items():
        whole.amounts[state] = amount
    whole.times[UseState.USED] = timedelta(microseconds=seconds)
    parts = split_by_adapter("p", whole, uses, ADAPTERS)
    for state, amount in whole.amounts.items():
        assert money.total(part.figure.amounts[state] for part in parts) == amount
    assert sum((part.figure.times[UseState.USED] for part in parts), timedelta(0)) == whole.times[UseState.USED]
    assert sum(shown_usd(parts)) == money.usd(whole.allocation)
    if any(part.counted is TokenBasis.ESTIMATED for part in parts) and prompt is not None:
        assert sum(part.figure.tokens.prompt or 0 for part in parts) == prompt
    assert {part.name for part in parts} >= set(ADAPTERS)


def reading(model: str, hours: float, ms: int, tokens: int = 0, team: str = "") -> TeamReading:
    return TeamReading(
        fleet=FLEET, router="r1", team=team, model=model, pool="chat", at=T0 + hours * HOUR, replica_ms=ms,
        tokens_in=4 * tokens, tokens_out=tokens, unmetered=0,
    )  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A ledger of six hours in which the engines counted 315 000 tokens in and 78 750 out, and its document."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    rows = [reading("chat", -0.1, 0)]
    rows += [reading("chat", 5, 200, 20_000), reading(SQL, 5, 300, 15_000), reading(SQL, 5, 400, 4_375, "search")]
    with writing(engine) as connection:
        add_team_readings(connection, rows)
    path = document(tmp_path)
    whole = json.loads(path.read_text())
    whole["pools"][0] |= {"served_name": "chat", "adapters": ADAPTERS}
    path.write_text(json.dumps(whole))
    return path


def test_the_report_lists_model_adapters_and_unrecorded_requests_of_all_teams(fleet: Path) -> None:
    found = read_json("cost", "--fleet", fleet, *WINDOW)
    pool = Decimal(found["by"]["pool"]["chat"]["usd"])
    rows = {row["name"]: row for row in found["adapters"]}
    assert {(row["part"], name) for name, row in rows.items()} == {
        ("model", "chat"), ("adapter", SQL), ("adapter", TAX), ("not-recorded", None)
    }  # fmt: skip
    assert sum(Decimal(row["usd"]) for row in rows.values()) == pool
    assert rows[SQL]["engine_seconds"] == "0.700"
    assert rows[SQL]["tokens"]["generation"] == 19_375
    # half of the engines' tokens
    assert abs(Decimal(rows[None]["usd"]) - pool / 2) < Decimal("1e-8")
    assert rows[TAX]["usd"] == "0.000000000"
    of_adapter = found["by"]["adapter"]
    assert set(of_adapter) == {"chat", SQL, TAX, NOT_RECORDED, "(none)"}
    assert sum(Decimal(figure["usd"]) for figure in of_adapter.values()) == Decimal(found["total"]["usd"])


def test_table_csv_html_and_focus_show_adapters(fleet: Path) -> None:
    table = stdout_of("cost", "--fleet", fleet, *WINDOW)
    assert f"\n{SQL} " in table
    assert f"\n{NOT_RECORDED} " in table
    rows = list(csv.DictReader(StringIO(stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "focus"))))
    of_chat = [row for row in rows if row["x_Pool"] == "chat"]
    assert {row["x_RequestedModel"] for row in of_chat} == {"chat", SQL, ""}
    sql = sum(Decimal(row["EffectiveCost"]) for row in of_chat if row["x_RequestedModel"] == SQL)
    (expected,) = (
        row["usd"] for row in read_json("cost", "--fleet", fleet, *WINDOW)["adapters"] if row["name"] == SQL
    )
    assert abs(sql - Decimal(expected)) < Decimal("1e-6")
    assert f"<td>{SQL}</td>" in stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "html")


def test_a_pool_without_recorded_requests_is_noted(tmp_path: Path) -> None:
    fill(open_ledger(f"sqlite:///{tmp_path}/ledger.db"))
    whole: dict[str, Any] = json.loads(document(tmp_path).read_text())
    whole["pools"][0]["adapters"] = ADAPTERS
    (tmp_path / "fleet.json").write_text(json.dumps(whole))
    found = read_json("cost", "--fleet", tmp_path / "fleet.json", *WINDOW)
    assert "pool chat: the router recorded no requests; the cost of each adapter is unknown" in found["notes"]
    assert found["adapters"][-1]["usd"] == found["by"]["pool"]["chat"]["usd"]


def test_a_fleet_without_adapters_declares_what_earlier_releases_declared() -> None:
    assert "adapters" not in content_of(DeclaredCosts())
    assert content_of(DeclaredCosts(adapters={"chat": [SQL]})) != content_of(DeclaredCosts())
