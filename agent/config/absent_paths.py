"""Which paths of a configuration lead nowhere on this host: no mistake, since they may come, but worth a look."""

from collections.abc import Iterator
from glob import glob
from pathlib import Path

from agent.config.settings import Settings
from agent.config.toml_places import Path as KeyPath


def absent_paths(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Each one's key path in the configuration, and a sentence. Looks at this host's files; URLs are passed over."""
    for name, logs in settings.logs.items():
        for number, pattern in enumerate(logs.paths):
            found = glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
            if not found:
                yield ("logs", name, "paths", number), f"no file matches {pattern}"
            elif all(_leads_nowhere(Path(one), directory=True) is None for one in found):
                yield ("logs", name, "paths", number), f"only directories match {pattern}; name the files in them"
    for name, flink in settings.flink.items():
        storage = flink.storage_directory
        why = None if storage is None else _leads_nowhere(storage, directory=True)
        if why is not None:
            yield ("flink", name, "storage_directory"), why
    for name, cluster in settings.clusters.items():
        for broker, paths in cluster.log_directories.items():
            for path in paths:
                why = None if "://" in path else _leads_nowhere(Path(path))
                if why is not None:
                    yield ("clusters", name, "log_directories", str(broker)), why


def _leads_nowhere(path: Path, *, directory: bool = False) -> str | None:
    """Why nothing is found there, a sentence; None where something is. directory: whether it must be one."""
    try:
        there = path.is_dir() if directory else path.exists()
    except OSError as error:  # who checks may not be who runs the agent
        return f"{path} cannot be looked at: {error.strerror}"
    return None if there else f"there is no {'directory ' if directory else ''}{path}"
