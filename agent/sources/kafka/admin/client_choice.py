"""Which of the admin process's two clients is asked."""

from collections.abc import Sequence

from agent.sources.kafka.admin import protocol

MANY_GROUPS = 20
"""How many groups must be asked about at once for kafka-python to do it, with one request for many of them."""

MANY_LOGS = 200
"""Of how many partitions log offsets must be listed at once for kafka-python to do it, and to read the metadata."""

SECOND_CLIENT_ONLY = (
    protocol.ListTypedGroups,
    protocol.DescribeTypedGroup,
    protocol.ListShareOffsets,
    protocol.DescribeOpenTransaction,
)
"""Requests that librdkafka does not know."""

_SECOND_CLIENT = (*SECOND_CLIENT_ONLY, protocol.DescribeTopics)
"""What kafka-python is always asked; the last one librdkafka if kafka-python cannot."""


class ClientChoice:
    """Divides requests between librdkafka and kafka-python, which stays with what it has been asked once."""

    def __init__(self) -> None:
        self._second: tuple[type[protocol.Request], ...] = _SECOND_CLIENT

    def is_for_second(self, message: protocol.NumberedRequest) -> bool:
        """Return whether kafka-python is to be asked."""
        return isinstance(message.request, self._second)

    def update(self, messages: Sequence[protocol.NumberedRequest]) -> None:
        """Take note of requests that arrived together."""
        requests = [message.request for message in messages if not self.is_for_second(message)]
        if sum(isinstance(request, protocol.GROUP_REQUESTS) for request in requests) >= MANY_GROUPS:
            self._second += protocol.GROUP_REQUESTS
        logs = [request.partitions for request in requests if isinstance(request, protocol.ListOffsets)]
        if sum(map(len, logs)) >= MANY_LOGS:
            self._second += (protocol.ListOffsets, protocol.ListStableOffsets, protocol.FetchMetadata)
