"""Leaders' znodes as Flink 1.4.2 and 1.20.1 wrote them, and what is none of Flink's."""

import pytest

from agent.sources.flink.ha_znodes import connection
from agent.sources.zookeeper.znodes import UndecodableError

_UUID = (
    "7372000e6a6176612e7574696c2e55554944bc9903f7986d852f0200024a000c6c65617374536967426974734a000b6d6f7374536967426974"
    "737870"
)
_OF_1_4 = (
    "aced000577320030616b6b612e7463703a2f2f666c696e6b403132372e302e302e313a32383033322f757365722f6a6f626d616e61676572"
    f"{_UUID}8cc7c62ee15631084ea5f947c4aa411c"
)
_OF_1_20 = f"aced000577180016687474703a2f2f3132372e302e302e313a3230303438{_UUID}af9cb6e89e24540a84eca1a07c5644f2"


@pytest.mark.parametrize(
    ("content", "address", "leader_id"),
    [
        (_OF_1_4, "akka.tcp://flink@127.0.0.1:28032/user/jobmanager", "4ea5f947-c4aa-411c-8cc7-c62ee1563108"),
        (_OF_1_20, "http://127.0.0.1:20048", "84eca1a0-7c56-44f2-af9c-b6e89e24540a"),
    ],
)
def test_a_leaders_znode_has_its_address_and_its_session(content: str, address: str, leader_id: str) -> None:
    """Bytes of real clusters."""
    assert connection("/p", bytes.fromhex(content)) == (address, leader_id)


def test_an_address_longer_than_one_byte_can_count_is_read() -> None:
    """Java then writes a long block: TC_BLOCKDATALONG and four bytes of length."""
    address = "http://" + "x" * 300
    utf = len(address).to_bytes(2, "big") + address.encode()
    content = b"\xac\xed\x00\x05\x7a" + len(utf).to_bytes(4, "big") + utf + bytes.fromhex(_UUID) + bytes(15) + b"\x01"
    assert connection("/p", content) == (address, "00000000-0000-0001-0000-000000000000")


def test_nobody_leads_where_the_znode_is_empty() -> None:
    """As between two leaders, or where a leader was written as null."""
    assert connection("/p", b"") is None
    assert connection("/p", bytes.fromhex("aced00057703000161") + b"p") == ("a", None)


@pytest.mark.parametrize("content", [b"127.0.0.1:8081", b"\xac\xed", bytes.fromhex(_OF_1_4)[:20], b"\x00" * 64])
def test_what_flink_does_not_write_is_told_with_its_path(content: bytes) -> None:
    """Text, nothing but a header, a stream that is cut off, zeros."""
    with pytest.raises(UndecodableError, match="the znode /p is not what Flink writes"):
        connection("/p", content)
