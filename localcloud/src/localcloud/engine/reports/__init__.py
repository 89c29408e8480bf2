"""What each engine reports about its requests, and when."""

from collections.abc import Mapping
from typing import Final

from localcloud.engine.reports.base import EngineReport
from localcloud.engine.reports.dynamo import DynamoReport
from localcloud.engine.reports.lmdeploy import LmdeployReport
from localcloud.engine.reports.sglang import SglangReport
from localcloud.engine.reports.tgi import TgiReport
from localcloud.engine.reports.triton import TritonReport
from localcloud.engine.reports.trtllm import TrtllmReport
from localcloud.engine.reports.vllm import VllmReport
from serving.engines import EngineKind

REPORTS: Final[Mapping[EngineKind, type[EngineReport]]] = {
    EngineKind.VLLM: VllmReport,
    EngineKind.SGLANG: SglangReport,
    EngineKind.TRTLLM: TrtllmReport,
    EngineKind.TRITON: TritonReport,
    EngineKind.LMDEPLOY: LmdeployReport,
    EngineKind.DYNAMO: DynamoReport,
    EngineKind.TGI: TgiReport,
}
