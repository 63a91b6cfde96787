"""Messages that kafka-python lacks, from `common/message` of Kafka 4.1 without the descriptions of fields.

Version 1 of DescribeShareGroupOffsets is from Kafka 4.3.

Copyright the Apache Software Foundation, Apache License 2.0.
"""

from types import new_class
from typing import Any

from kafka.protocol.api_message import ApiMessage


def _message(name: str) -> Any:
    """Return the class of the message that `name`.json describes; a response is also registered with kafka-python."""
    return new_class(name, (ApiMessage,), {"load_json": __name__})


ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")
StreamsGroupDescribeRequest = _message("StreamsGroupDescribeRequest")
StreamsGroupDescribeResponse = _message("StreamsGroupDescribeResponse")
ShareGroupDescribeRequest = _message("ShareGroupDescribeRequest")
ShareGroupDescribeResponse = _message("ShareGroupDescribeResponse")
DescribeShareGroupOffsetsRequest = _message("DescribeShareGroupOffsetsRequest")
DescribeShareGroupOffsetsResponse = _message("DescribeShareGroupOffsetsResponse")
