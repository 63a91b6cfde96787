"""Which paths of a configuration lead nowhere on this host: no mistake, since they may come, but worth a look."""

from collections.abc import Iterator
from glob import glob
from pathlib import Path

from agent.settings import Settings
from agent.settings.toml_places import Path as KeyPath


def absent_paths(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Each one's key path in the configuration, and a sentence. Looks at this host's files; URLs are passed over."""
    for name, logs in settings.logs.items():
        for number, pattern in enumerate(logs.paths):
            found = glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
            if not found:
                yield ("logs", name, "paths", number), f"no file matches {pattern}"
            elif all(Path(one).is_dir() for one in found):
                yield ("logs", name, "paths", number), f"only directories match {pattern}; name the files in them"
    for name, flink in settings.flink.items():
        if flink.storage_directory is not None and not flink.storage_directory.is_dir():
            yield ("flink", name, "storage_directory"), f"there is no directory {flink.storage_directory}"
    for name, cluster in settings.clusters.items():
        for broker, paths in cluster.log_directories.items():
            for path in paths:
                if "://" not in path and not Path(path).exists():
                    yield ("clusters", name, "log_directories", str(broker)), f"there is no {path}"
