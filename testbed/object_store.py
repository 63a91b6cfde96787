"""An S3-compatible server as a process of its own: moto's, with one bucket."""

import sys
from pathlib import Path

from pyarrow import fs

from testbed.processes import Process, free_port
from testbed.waiting import wait_until

ACCESS_KEY, SECRET_KEY, REGION = "testbed", "opens-nothing", "us-east-1"


class ObjectStore(Process):
    """A server on a free loopback port. What it stores is lost when it stops; frozen, it does not answer."""

    def __init__(self, workdir: Path, bucket: str = "journals") -> None:
        """workdir: for its log. bucket: the name of its bucket; clients may keep their connection by it."""
        self.bucket = bucket
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__("the object store", command, workdir / "object-store.log")

    def start(self) -> None:
        """Start it, and create the bucket as soon as it answers."""
        super().start()
        self.wait_for_line("Running on")
        wait_until(self._create_bucket, "the bucket", 30)

    def _create_bucket(self) -> bool:
        self.files().create_dir(self.bucket)
        return True

    def files(self) -> fs.S3FileSystem:
        """Return its file system."""
        return fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )

    def variables(self, port: int | None = None) -> dict[str, str]:
        """Return the environment variables by which clients reach it. port: of a proxy, if one is between."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port or self.port}",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
