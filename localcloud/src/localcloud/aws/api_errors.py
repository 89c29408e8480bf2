"""The error response of an AWS API, in the protocol of the service."""

import json
from html import escape
from typing import Final

from localcloud.api_faults import ApiFault

_JSON_SERVICES: Final = frozenset({"ssm", "events", "sqs", "secretsmanager", "kms", "ecr", "logs", "pricing"})
_MESSAGES: Final = {
    "RequestLimitExceeded": "Request limit exceeded.",
    "Throttling": "Rate exceeded",
    "ThrottlingException": "Rate exceeded",
    "SlowDown": "Please reduce your request rate.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "ResourceContention": "You already have a pending update to an Amazon EC2 Auto Scaling resource (for example, an"
    " Auto Scaling group or load balancer).",
    "ScalingActivityInProgress": "The operation can't be performed because there are scaling activities in progress.",
}
"""As documented by AWS or reported by users; no response with them has been recorded."""


def error_response(fault: ApiFault) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status line, headers and body."""
    message = fault.message or _MESSAGES.get(fault.code, f"{fault.code}: requested through the admin API")
    if fault.service in _JSON_SERVICES:
        text, kind = json.dumps({"__type": fault.code, "message": message}), "application/x-amz-json-1.1"
    else:
        text, kind = _xml(fault.service, escape(fault.code), escape(message)), "text/xml"
    body = text.encode()
    return f"{fault.status} Fault", [("Content-Type", kind), ("Content-Length", str(len(body)))], body


def _xml(service: str, code: str, message: str) -> str:
    error = f"<Code>{code}</Code><Message>{message}</Message>"
    match service:
        case "ec2":
            return f"<Response><Errors><Error>{error}</Error></Errors><RequestID>local</RequestID></Response>"
        case "s3":
            return f"<Error>{error}<RequestId>local</RequestId></Error>"
        case _:
            error = f"<Error><Type>Sender</Type>{error}</Error>"
            return f"<ErrorResponse>{error}<RequestId>local</RequestId></ErrorResponse>"
