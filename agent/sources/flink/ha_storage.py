"""The job graphs' files in Flink's HA storage directory, as a path that this host sees."""

import re
from pathlib import Path

from agent.model.observations import JobGraphFile

_FILE = re.compile(r"submitted(?:JobGraph|ExecutionPlan)[0-9a-f]{12}")


def job_graph_files(directory: Path, cluster_id: str, cluster: str, at: int) -> list[JobGraphFile]:
    """The files in the directory itself, where 1.4 has them, and in that of the cluster id, where later versions do.

    Raises OSError where the directory cannot be read. One that has no folder of the cluster id has no files there.
    """
    files = []
    below = directory / cluster_id.strip("/")
    for folder in dict.fromkeys((directory, below)):
        try:
            entries = sorted(folder.iterdir())
        except FileNotFoundError:
            if folder == directory:
                raise
            continue
        for file in entries:
            if not _FILE.fullmatch(file.name):
                continue
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue  # deleted since the directory was listed
            found = JobGraphFile(
                at=at, cluster=cluster, file=file.name, modified_at=stat.st_mtime_ns // 1_000_000, size=stat.st_size
            )
            files.append(found)
    return files
