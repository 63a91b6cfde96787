"""Reading from a socket."""

import socket


def read_exactly(connection: socket.socket, length: int) -> bytes:
    """Return exactly so many bytes. Raises EOFError at the end of the connection."""
    received = b""
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            raise EOFError
        received += part
    return received
