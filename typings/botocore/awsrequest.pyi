from collections.abc import MutableMapping
from typing import Any

class AWSRequest:
    headers: MutableMapping[str, str]
    context: dict[str, Any]
    def __init__(self, *, method: str, url: str, headers: MutableMapping[str, str], data: bytes) -> None: ...

class AWSResponse:
    def __init__(self, url: str, status_code: int, headers: MutableMapping[str, str], raw: Any) -> None: ...
