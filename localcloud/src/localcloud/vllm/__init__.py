"""Real vLLM on this machine's CPU, in the place of a GPU instance's container (`image: gpu-fleet/vllm-cpu`)."""

from collections.abc import Mapping
from typing import Final

ENVIRONMENT: Final[Mapping[str, str]] = {
    # more threads than one wait for each other in busy loops as soon as a core is shared
    "OMP_NUM_THREADS": "1",
    # the executor `uni` needs it
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""What vLLM needs on two shared CPU cores, without a way to a hub."""
