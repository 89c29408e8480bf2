from collections.abc import MutableMapping
from typing import Any

class AWSRequest:
    headers: MutableMapping[str, str]
    context: dict[str, Any]
    def __init__(self, *, method: str, url: str, headers: MutableMapping[str, str], data: bytes) -> None: ...
