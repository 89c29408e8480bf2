"""Translates error codes and messages of Compute Engine into activity kinds."""

import re
from typing import Any, Final

from gpufleet.domain.activity import ActivityKind

_K: Final = ActivityKind
_TABLE: Final = (
    # messages about reservations, which have codes of other errors
    (_K.LATER, r"reservation with status|reservation to be in READY|reservation\b[^.]* is not (yet )?ready"),
    (
        _K.CONFIGURATION,
        r"reservations?\b[^.]*(do(es)? not exist|must exist|not found|do(es)? not (fit|match))"
        r"|find the given reservation|ReservationAffinity|Incompatible \w*Reservation|^INVALID_RESERVATION",
    ),
    (
        _K.RESERVATION_FULL,
        r"^\w*RESERVATION\w*(EXHAUSTED|EXCEEDED|FULL|CONSUMED)"
        r"|reservations?\b[^.]*(\b(no|not|insufficient)\b[^.]*(resources?|capacity|room|VMs|instances)|consumed"
        r"|is full|are full|exhausted|all in use)"
        r"|(\bno|insufficient|not enough) [\w ]*(resources?|capacity|room|VMs)[^.]*\breservations?\b",
    ),
    # codes
    (
        _K.THROTTLED,
        r"^(CONCURRENT_OPERATIONS|concurrentOperations|\w*RATE_(LIMIT_)?EXCEEDED|\w*RateLimitExceeded"
        r"|\w*RateExceeded|TOO_MANY|tooMany|429\b)",
    ),
    # API request quotas
    (_K.THROTTLED, r"quota\b.* per (second|minute|\d+ seconds)"),
    # this code without an explanation means that a spot instance was preempted during its creation
    (_K.UNSUPPORTED, r"^UNSUPPORTED_OPERATION: .*(not (supported|available|offered)|\bnot support\b)"),
    (
        _K.PREEMPTED,
        r"^UNSUPPORTED_OPERATION\b|preempted (during|while|before)|(was|been) preempted|due to preemption",
    ),
    (_K.LATER, r"^(RESOURCE_NOT_READY|resourceNotReady)|\bthe resource '[^']*' is not ready"),
    (_K.QUOTA, r"^(\w*QUOTA\w*EXCEEDED|QUOTA(_LIMIT\w*)?:|\w*quotaExceeded|LIMIT_EXCEEDED|limitExceeded)"),
    (_K.NO_CAPACITY, r"^\w*RESOURCE_POOL_EXHAUSTED|^\w*STOCKOUT|^INSUFFICIENT_?(CAPACITY|RESOURCE)"),
    (_K.CONFIGURATION, r"^(IP_?SPACE_?EXHAUSTED|VM_EXTERNAL_IP_ACCESS_POLICY|\w*ORG_?POLICY)"),
    (
        _K.PERMISSION,
        r"^(PERMISSIONS?_|forbidden|accessNotConfigured|SERVICE_DISABLED|\w*ACCESS_DENIED|UNAUTHENTICATED|BILLING)",
    ),
    # messages
    (
        _K.THROTTLED,
        r"rate limit|operation rate|too (many|frequent) (requests|operations|calls)|concurrent operations",
    ),
    (
        _K.QUOTA,
        r"\bquota\b.*\b(exceeded|reached|insufficient)\b|(exceed\w*|insufficient|not enough|over) .*\bquota\b"
        r"|exceed\w* limit '",
    ),
    (
        _K.CONFIGURATION,
        r"\bconstraint\b.*\bviolat|violat\w+ .*\bconstraint|\borg(ani[sz]ation(al)?)? policy|IP space of",
    ),
    (
        _K.PERMISSION,
        r"required '[\w.]+' permission|permission ('[\w.]+' )?denied"
        r"|(lacks?|does not have|missing) .*\b(permission|access)\b"
        r"|has not been used in project|billing .*\b(disabled|not enabled)",
    ),
    (
        _K.NO_CAPACITY,
        r"\bSTOCKOUT\b"
        r"|\b(zone|region|engine)\b[^.]* does not (currently )?have (enough|sufficient) (resources|capacity)",
    ),
    (_K.NO_CAPACITY, r"\bis currently unavailable in\b.*\bzone|\bresource_availability\b"),
    (
        _K.UNSUPPORTED,
        r"(machine|accelerator)[ _]?types?\b.*(not found|does not exist|not (supported|available|offered))"
        r"|not (supported|offered) in (the |this )?(\w+ )?(zone|region|location)"
        r"|\b(zone|region)\b[^.]* does not support\b",
    ),
    (
        _K.CONFIGURATION,
        r"^(RESOURCE_NOT_FOUND|notFound)|^invalid|invalid value for field|\binvalid value\b"
        r"|\bfeatures are not compatible\b|\bsmaller than (the )?(image|snapshot)\b|\bCloud KMS error\b",
    ),
)
_RULES: Final = tuple((kind, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for kind, pattern in _TABLE)
"""Ordered rules. The first that matches `CODE: message` counts."""
_ACCOUNT_WIDE: Final = re.compile(r"'?\w+_ALL_REGIONS\b|\bLimit: [\d.]+ globally", re.IGNORECASE)
_ZONES: Final = "zonesAvailable"
_ZONE_LIST: Final = re.compile(r"consider trying your request in the ([\w\s,-]+?) zone\(s\)", re.IGNORECASE)


def kind_of(code: str, message: str) -> ActivityKind:
    """Kind of an error. A message that matches no rule is UNKNOWN and never counts as missing capacity."""
    text = f"{code}: {message}"
    return next((kind for kind, rule in _RULES if rule.search(text)), ActivityKind.UNKNOWN)


def is_account_wide(kind: ActivityKind, message: str) -> bool:
    """Whether a quota applies to all regions and provisioning models."""
    return kind is ActivityKind.QUOTA and _ACCOUNT_WIDE.search(message) is not None


def zones_available(error: Any) -> tuple[str, ...]:
    """Zones with available capacity, from the details or the message of an error; empty if it names none."""
    details = getattr(error, "error_details", ())  # errors in a group's list have no details
    for detail in details:
        if listed := dict(detail.error_info.metadatas).get(_ZONES):
            return _names(listed)
    sentences = [error.message, *(detail.localized_message.message for detail in details)]
    named = next((found for sentence in sentences if (found := _ZONE_LIST.search(sentence))), None)
    return _names(named[1]) if named else ()


def _names(listed: str) -> tuple[str, ...]:
    return tuple(zone for part in re.split(r"[,\s]+", listed) if (zone := part.strip()))
