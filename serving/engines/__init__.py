"""Inference engines: one contract each. Code outside this package never asks which engine it is."""

from collections.abc import Mapping
from typing import Final

from serving.engines import dynamo, lmdeploy, ollama, sglang, tgi, triton, trtllm, vllm
from serving.engines.contract import Contract, EngineKind

CONTRACTS: Final[Mapping[EngineKind, Contract]] = {
    module.CONTRACT.kind: module.CONTRACT for module in (vllm, sglang, trtllm, triton, lmdeploy, dynamo, tgi, ollama)
}
"""All contracts, by engine."""
