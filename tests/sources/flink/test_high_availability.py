"""Leader znodes as Flink 1.4.2 and 1.20.1 wrote them, and job graph files in the HA storage directory."""

from pathlib import Path

import pytest

from agent.sources.flink.high_availability import decode_leader, list_job_graph_files
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
def test_leader_znode_has_address_and_session(content: str, address: str, leader_id: str) -> None:
    assert decode_leader("/p", bytes.fromhex(content)) == (address, leader_id)


def test_leader_address_over_255_bytes_is_decoded() -> None:
    """Java then writes a long block: TC_BLOCKDATALONG and four bytes of length."""
    address = "http://" + "x" * 300
    utf = len(address).to_bytes(2, "big") + address.encode()
    content = b"\xac\xed\x00\x05\x7a" + len(utf).to_bytes(4, "big") + utf + bytes.fromhex(_UUID) + bytes(15) + b"\x01"
    assert decode_leader("/p", content) == (address, "00000000-0000-0001-0000-000000000000")


def test_empty_leader_znode_means_no_leader() -> None:
    """The znode is empty between two leaders; a null UUID leaves only the address."""
    assert decode_leader("/p", b"") is None
    assert decode_leader("/p", bytes.fromhex("aced00057703000161") + b"p") == ("a", None)


@pytest.mark.parametrize("content", [b"127.0.0.1:8081", b"\xac\xed", bytes.fromhex(_OF_1_4)[:20], b"\x00" * 64])
def test_foreign_leader_znode_is_an_error_with_its_path(content: bytes) -> None:
    """Text, only a header, a truncated stream, zeros."""
    with pytest.raises(UndecodableError, match="cannot decode the znode /p: Flink does not write"):
        decode_leader("/p", content)


def test_job_graph_files_are_found_in_every_layout(tmp_path: Path) -> None:
    """1.4 writes into the directory, later versions below the cluster id; 2.x calls them execution plans."""
    below = tmp_path / "testbed"
    (below / "blob").mkdir(parents=True)
    for path in (
        tmp_path / "submittedJobGraph9f0833ace38d",
        tmp_path / "completedCheckpoint0123456789ab",
        below / "submittedJobGraph31c65175df76",
        below / "submittedExecutionPlan31c65175df77",
        below / "submittedJobGraph31c65175df76.tmp",
    ):
        path.write_bytes(b"12345")
    files = list_job_graph_files(tmp_path, "/testbed", "f", 7)
    assert [file.file for file in files] == [
        "submittedJobGraph9f0833ace38d",
        "submittedExecutionPlan31c65175df77",
        "submittedJobGraph31c65175df76",
    ]
    assert {(file.size, file.at, file.cluster) for file in files} == {(5, 7, "f")}
    assert all((file.modified_at or 0) > 1_600_000_000_000 for file in files)


def test_missing_storage_directory_is_not_an_empty_one(tmp_path: Path) -> None:
    """A path that is not mounted must not look like deleted files; one without the cluster's folder has none."""
    assert list_job_graph_files(tmp_path, "/testbed", "f", 7) == []
    with pytest.raises(FileNotFoundError):
        list_job_graph_files(tmp_path / "gone", "/testbed", "f", 7)
