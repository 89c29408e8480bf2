"""Clients of plain HTTP load no certificate authorities, and trust no certificate."""

import ssl

from gpufleet.clouds.plain_http import context_without_authorities


def test_the_context_without_authorities_trusts_no_certificate() -> None:
    made = context_without_authorities()
    assert (made.verify_mode, made.check_hostname, made.get_ca_certs()) == (ssl.CERT_REQUIRED, True, [])
