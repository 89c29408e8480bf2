from typing import Any

import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials

class Session:
    def __init__(
        self,
        aws_access_key_id: str | None = ...,
        aws_secret_access_key: str | None = ...,
        aws_session_token: str | None = ...,
        region_name: str | None = ...,
        botocore_session: botocore.session.Session | None = ...,
    ) -> None: ...
    @property
    def region_name(self) -> str | None: ...
    def client(
        self,
        service_name: str,
        region_name: str | None = ...,
        *,
        endpoint_url: str | None = ...,
        config: Config | None = ...,
    ) -> Any: ...
    def get_available_regions(self, service_name: str) -> list[str]: ...
    def get_credentials(self) -> Credentials | None: ...
