"""Reads pages in Prometheus' text format, with the parser of `prometheus_client`."""

from prometheus_client.parser import text_string_to_metric_families


def value(page: str, name: str, **labels: str) -> float | None:
    """The value of the one sample with exactly these labels; None where there is none."""
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if (sample.name, sample.labels) == (name, labels)
    ]
    assert len(found) < 2, f"{name} {labels} is there {len(found)} times"
    return found[0] if found else None


def types(page: str) -> dict[str, str]:
    """The type of each family, by the name that its samples have. Each family must have a help text."""
    found = {}
    for family in text_string_to_metric_families(page):
        assert family.documentation, f"{family.name} has no help text"
        found[f"{family.name}_total" if family.type == "counter" else family.name] = family.type
    return found
