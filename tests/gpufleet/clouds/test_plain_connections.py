"""A client of plain addresses reads no certificates, and trusts nobody should it ever need one."""

import ssl

from gpufleet.clouds.plain_http import context_without_authorities


def test_what_needs_no_certificates_trusts_none() -> None:
    made = context_without_authorities()
    assert (made.verify_mode, made.check_hostname, made.get_ca_certs()) == (ssl.CERT_REQUIRED, True, [])
