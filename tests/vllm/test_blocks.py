"""Predicted KV cache blocks equal the blocks that a real engine reports, exactly."""

import json
from typing import Any

import pytest

from serving.sizing import families
from serving.sizing.memory import CacheShape, layout
from tests.fixtures.vllm.tiny_configs import CONFIGS
from tests.vllm.conftest import Ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONTEXT, BATCHED, BLOCK, MEMORY = 1024, 1024, 32, 8 * 1024 * 1024


@pytest.fixture(scope="module")
def reported(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the reports of all engines, started from one process."""
    folder = tmp_path_factory.mktemp("configs")
    for number, config in enumerate(CONFIGS.values()):
        (folder / str(number)).mkdir()
        (folder / str(number) / "config.json").write_text(json.dumps(config))
    options = {
        "max_model_len": CONTEXT,
        "block_size": BLOCK,
        "kv_cache_memory_bytes": MEMORY,
        "max_num_seqs": 4,
        "max_num_batched_tokens": BATCHED,
        # the default depends on the CPU: float32 with AVX-512 BF16, the model's type without
        "mamba_ssm_cache_dtype": "float32",
    }
    jobs = [{"model": str(folder / str(number)), "options": options} for number in range(len(CONFIGS))]
    return dict(zip(CONFIGS, ask({"blocks": jobs})["blocks"], strict=True))


@pytest.mark.parametrize("kind", CONFIGS)
def test_predicted_blocks_equal_reported_blocks(reported: dict[str, dict[str, Any]], kind: str) -> None:
    shape = CacheShape(block=BLOCK, max_model_len=CONTEXT, batched_tokens=BATCHED, concurrent_batches=1)
    plan = layout(families.read(CONFIGS[kind]), shape)
    assert plan is not None
    assert "error" not in reported[kind]
    assert plan.blocks(MEMORY) == reported[kind]["blocks"]
