"""The grid factor: from the settings to the fleet document and to reports."""

from datetime import date
from decimal import Decimal
from typing import Any

from app.price_inputs import declared_of
from gpufleet.domain.energy import GridFactor
from gpufleet.settings import document
from gpufleet.settings.document import Origin
from stacks import reading
from stacks.document import describe
from tests.fixtures.stacks.settings_files import AWS, changed

ORIGIN: Any = {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"}


def written(**more: Any) -> str:
    settings = reading.parse(changed(AWS, more), "file", date(2026, 11, 21))
    groups = {pool.name: () for pool in settings.pools}
    return describe(settings, groups, "s3://b", Origin.model_validate(ORIGIN))


def test_stated_factor_reaches_reports() -> None:
    text = written(carbon={"grams_per_kwh": "379", "source": "a list, 2025", "pue": "1.2"})
    declared = declared_of(document.parse(text, "there"))
    assert declared.carbon == GridFactor(grams_per_kwh=Decimal(379), source="a list, 2025", pue=Decimal("1.2"))


def test_document_without_a_factor_can_be_read_by_earlier_releases() -> None:
    text = written()
    assert '"carbon"' not in text
    assert declared_of(document.parse(text, "there")).carbon is None
