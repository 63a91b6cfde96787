"""Addresses of HTTP endpoints in rules.toml, well formed. They are asked by sources."""

from urllib.parse import urlsplit


def http_address(value: str, expected: str, *, query: bool = False) -> str:
    """An http or https address without a user or a fragment. Raises ValueError.

    expected: what it should have been, with an example. query: whether it may have one.
    """
    address = value.strip()
    try:
        parts = urlsplit(address)
        well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        well_formed = False
    if not well_formed or (parts.query and not query) or parts.fragment or any(sign.isspace() for sign in address):
        msg = f'expected {expected}, got "{value}"'
        raise ValueError(msg)
    if parts.username is not None:
        msg = "a user or password must not stand in this file"
        raise ValueError(msg)
    return address
