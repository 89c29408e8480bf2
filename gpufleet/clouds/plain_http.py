"""Connections without TLS, to private addresses."""

import ssl


def context_without_authorities() -> ssl.SSLContext:
    """A TLS context without certificate authorities, for clients that use only `http://`.

    By default httpx loads all authorities for each client, which such connections do not need. If a connection uses
    TLS, its certificate is rejected.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
