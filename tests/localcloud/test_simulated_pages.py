"""Metrics pages of the simulated engines: they answer Prometheus as the real ones do."""

from pathlib import Path

import pytest
from localcloud.engine import endpoints
from localcloud.engine.arguments import parse
from localcloud.engine.batch import Batch
from localcloud.engine.endpoints import Served
from localcloud.engine.loading import load

from localcloud import tiny_model
from serving import exposition

PROMETHEUS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
"""What Prometheus 2.42 accepts, shortened."""


@pytest.mark.parametrize(
    ("accept", "prefix", "content_type", "is_ended"),
    [
        pytest.param("", "sglang:", "text/plain", False, id="text"),
        pytest.param(PROMETHEUS, "sglang_", "application/openmetrics-text", True, id="OpenMetrics"),
    ],
)
def test_sglang_writes_underscores_for_colons_in_openmetrics(
    accept: str, prefix: str, content_type: str, is_ended: bool, tmp_path: Path
) -> None:
    tiny_model.make(tmp_path)
    settings = parse(["-c", "sglang.launch_server", "--model-path", str(tmp_path), "--served-model-name", "chat:a"])
    served = Served(settings=settings, loaded=Batch(settings, load(tmp_path)), draining=False, accept=accept)
    found = endpoints.answer("GET", "/metrics", served)
    assert found is not None
    assert found.content_type.startswith(content_type)
    lines = found.body.decode().splitlines()
    assert (lines[-1] == "# EOF") is is_ended
    samples = list(exposition.parse(found.body.decode()))
    assert samples
    assert all(sample.name.startswith(prefix) for sample in samples)
    assert {sample.labels["model_name"] for sample in samples if "model_name" in sample.labels} == {"chat:a"}
