"""The router's certificate: provided or self-signed. A renewed one is loaded into the running HAProxy."""

import ssl
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Final

from gpufleet.domain.files import write_private
from gpufleet.logs import Log
from serving.router.runtime import AdminSocket
from serving.router.settings import CERTIFICATE

SELF: Final = "self"
"""Value for a certificate that the router creates and renews (for routers behind a load balancer)."""
_OWN_DAYS: Final = 90
_RENEW_BEFORE: Final = timedelta(days=30)
_LIMIT_S: Final = 30


class CertificateError(OSError):
    """The certificate cannot be read, has no key, or has expired. The message names the file."""


class Certificate:
    """`source` is a PEM file with certificate and key, or SELF. The copy in use is `router.pem` in the folder."""

    def __init__(self, source: str, folder: Path) -> None:
        self._source = source
        self._copy = folder / CERTIFICATE
        self.ends: float | None = None
        """Expiry of the certificate in use, in Unix seconds."""

    def prepare(self, now: float) -> None:
        """Write a valid copy before HAProxy starts. Raises CertificateError."""
        if not self._source:
            return
        pem = self._wanted(now)
        self.ends = _check(pem, self._source, now)
        write_private(self._copy, pem)

    def renew(self, admin: AdminSocket, now: float, log: Log) -> None:
        """Load a changed certificate into the running HAProxy without interrupting connections.

        Raises OSError; then the old certificate stays.
        """
        if not self._source:
            return
        pem = self._wanted(now)
        if pem == self._copy.read_text():
            return
        ends = _check(pem, self._source, now)
        payload = "\n".join(line for line in pem.splitlines() if line.strip())
        answer = admin.ask_with(f"set ssl cert {CERTIFICATE}", payload) + admin.ask(f"commit ssl cert {CERTIFICATE}")
        if "Success" not in answer:
            admin.ask(f"abort ssl cert {CERTIFICATE}")
            raise CertificateError(f"{self._source}: HAProxy refuses the certificate: {answer}")
        write_private(self._copy, pem)
        self.ends = ends
        log.info("certificate", outcome="renewed")

    def _wanted(self, now: float) -> str:
        if self._source != SELF:
            try:
                return Path(self._source).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise CertificateError(
                    f"{self._source}: the certificate cannot be read: {getattr(error, 'strerror', None) or error}"
                ) from error
        if self._copy.exists():
            pem = self._copy.read_text()
            ends = self.ends or _ends(pem, self._source)
            if ends - now > _RENEW_BEFORE.total_seconds():
                return pem
        return _make()


def _check(pem: str, source: str, now: float) -> float:
    """Return the certificate's expiry in Unix seconds. Raises CertificateError."""
    if "PRIVATE KEY" not in pem:
        raise CertificateError(f"{source}: has no private key; write certificate, chain and key into one file")
    ends = _ends(pem, source)
    if ends <= now:
        raise CertificateError(f"{source}: the certificate has expired")
    return ends


def _ends(pem: str, source: str) -> float:
    done = _openssl("x509", "-noout", "-enddate", text=pem)
    if done.returncode != 0:
        reason = next(iter(done.stderr.strip().splitlines()), "openssl gave no reason")
        raise CertificateError(f"{source}: contains no certificate that openssl can read: {reason}")
    return float(ssl.cert_time_to_seconds(done.stdout.strip().removeprefix("notAfter=")))


def _make() -> str:
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(_OWN_DAYS))
    done = _openssl("req", "-x509", *kind, "-subj", "/CN=gpu-fleet router", "-keyout", "-", "-out", "-")
    if done.returncode != 0:
        raise CertificateError(f"openssl did not create a certificate: {done.stderr.strip()[-200:]}")
    return done.stdout


def _openssl(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = ("openssl", *arguments)
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise CertificateError(f"openssl did not end within {_LIMIT_S} s") from error
