"""Connections without TLS, to private addresses."""

import ssl


def context_without_authorities() -> ssl.SSLContext:
    """For a client of `http://` alone: httpx reads the certificates of all authorities for each client, which no
    such connection needs. Should one use TLS after all, it is refused.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
