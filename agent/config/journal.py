"""[journal]: how long observations are kept on the local disk, and the archive that they are copied to."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from agent.config.credentials import Credential, resolve
from agent.config.toml_places import KeyPath
from agent.model.config_types import ConfigModel, PositiveDuration, duration_text

_ENDPOINT = re.compile(r"https?://[^/@?#\s]+/?")
_SCHEMES = ("s3", "hdfs", "gs", "file")


def archive_url(value: str) -> str:
    """Return the URL of an archive without a slash at its end. Raises ValueError."""
    url = urlsplit(value)
    if url.scheme not in _SCHEMES:
        msg = f'expected a URL such as "s3://bucket/prefix", "hdfs://...", "gs://..." or "file:///...", got "{value}"'
        raise ValueError(msg)
    if "@" in url.netloc or url.query or url.fragment:
        msg = "expected a URL without user name, options and fragment: secrets are not written in this file"
        raise ValueError(msg)
    if url.scheme == "file" and (url.netloc or not url.path.startswith("/")):
        msg = f'expected "file:///" and an absolute path, got "{value}"'
        raise ValueError(msg)
    if url.scheme in ("s3", "gs") and not url.netloc:
        msg = f'expected a bucket after "{url.scheme}://", got "{value}"'
        raise ValueError(msg)
    if {"..", "."} & set(PurePosixPath(url.path).parts) or "//" in url.path:
        msg = f'expected a path without empty parts, "." and "..", got "{value}"'
        raise ValueError(msg)
    return value.rstrip("/")


def _endpoint(value: str) -> str:
    if not _ENDPOINT.fullmatch(value):
        msg = f'expected an address such as "https://minio.example.com:9000", got "{value}"'
        raise ValueError(msg)
    return value.rstrip("/")


class S3(ConfigModel):
    """How to reach an archive at `s3://`. By default as AWS's own tools do: environment, files, instance profile.

    For example, for a server of your own:

        [journal.s3]
        endpoint = "https://minio.example.com:9000"
        access_key = { credential = "s3-access-key" }
        secret_key = { credential = "s3-secret-key" }
    """

    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    """Address of the server. Default: `$AWS_ENDPOINT_URL_S3`, `$AWS_ENDPOINT_URL`, else that of AWS."""
    region: str | None = None
    """Region of the bucket. Default: `$AWS_REGION`, `$AWS_DEFAULT_REGION`, else AWS is asked."""
    access_key: Credential | None = None
    """Where to read the id of the access key."""
    secret_key: Credential | None = None
    """Where to read the secret access key."""

    @model_validator(mode="after")
    def _require_both_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            msg = "`access_key` and `secret_key` belong together"
            raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        for name in ("access_key", "secret_key"):
            source = getattr(self, name)
            if source is not None:
                yield (name,), source

    def variables(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return what is configured as the environment variables of AWS's own tools. Raises CredentialError."""
        found = {"AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_REGION": self.region}
        for variable, source in (("AWS_ACCESS_KEY_ID", self.access_key), ("AWS_SECRET_ACCESS_KEY", self.secret_key)):
            found[variable] = None if source is None else resolve(source, environment).get_secret_value()
        return {name: value for name, value in found.items() if value is not None}


class Journal(ConfigModel):
    """The journal of observations, which `replay` and Spark checks read.

    With `archive`, its sealed files are copied to an object store or another file system, where they can be kept for
    longer. Several agents may share an archive. [The journal](../explanation/journal.md) has the details. For example:

        [journal]
        retention = "14d"
        archive = "s3://observability/backflow"
        archive_retention = "365d"
    """

    retention: PositiveDuration = 30 * 86_400_000
    """How long observations and closed incidents are kept. Of the journal, only what is archived is removed."""
    archive: Annotated[str, AfterValidator(archive_url)] | None = None
    """URL to archive the journal at: `s3://bucket/prefix`, `hdfs://host:8020/path`, `gs://...` or `file:///path`."""
    archive_retention: PositiveDuration | None = None
    """How long observations are kept in the archive. Default: forever."""
    s3: S3 = S3()
    """How to reach an archive at `s3://`."""

    @model_validator(mode="after")
    def _check_archive(self) -> Self:
        if self.archive is None and self.archive_retention is not None:
            msg = "`archive_retention` has no effect without `archive`"
            raise ValueError(msg)
        if self.archive_retention is not None and self.archive_retention < self.retention:
            msg = (
                f'`archive_retention` ("{duration_text(self.archive_retention)}") is shorter than `retention` '
                f'("{duration_text(self.retention)}"): what is on the local disk would be removed from the archive'
            )
            raise ValueError(msg)
        return self

    def variables(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment variables by which `[journal.s3]` reaches processes that read an archive.

        Raises CredentialError.
        """
        return self.s3.variables(environment)
