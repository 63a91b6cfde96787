"""The receivers of [receivers.NAME]: one file per kind, found by its name.

A new kind is a new file with one subclass of ReceiverSettings, whose `connect` returns a Receiver.
"""

from collections.abc import Mapping

from agent.config.receivers import ReceiverSettings
from agent.model.kinds import load_kinds

KINDS: Mapping[str, type[ReceiverSettings]] = load_kinds(__name__, __path__, ReceiverSettings)
"""The table of every receiver by its kind, the name of its file."""
