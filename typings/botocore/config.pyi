from collections.abc import Mapping
from typing import Any

class Config:
    def __init__(
        self,
        *,
        connect_timeout: float = ...,
        read_timeout: float = ...,
        retries: Mapping[str, int | str] | None = ...,
        s3: Mapping[str, Any] | None = ...,
        max_pool_connections: int = ...,
        proxies: Mapping[str, str] | None = ...,
    ) -> None: ...
