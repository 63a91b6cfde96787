"""Chooses which JobManager to ask: the leader if it is known, otherwise one that has responded."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.config.http_client import HttpClient
from agent.sources.background import run_in_thread
from agent.sources.flink.rest import ConfigEntry, Job, JobsOverview, NotFoundError, OldJobsOverview, RestEndpoint
from agent.sources.http import HttpStatusError, RequestError

_OVERVIEW, _OLD_OVERVIEW = "/jobs/overview", "/joboverview"


class LeaderListing(NamedTuple):
    """All jobs as one JobManager lists them. is_1_4: it is Flink 1.4, where only the leader lists jobs."""

    endpoint: RestEndpoint
    jobs: tuple[Job, ...]
    is_1_4: bool


class JobManagers:
    """The REST addresses of a cluster. The one that responded last is asked first, then all others at once."""

    def __init__(self, urls: Iterable[str], client: HttpClient | None = None) -> None:
        self._endpoints = [RestEndpoint(url, client) for url in urls]
        self._preferred: RestEndpoint | None = None
        self._overview_paths: dict[str, str] = {}
        self._rpc_addresses: dict[str, str] = {}
        self._requests: dict[str, Future[LeaderListing]] = {}

    def fetch_listing(self, leader: str | None, deadline: float) -> LeaderListing:
        """Return the jobs as the leader lists them.

        leader: its address according to ZooKeeper, None if unknown. deadline: of time.monotonic(). Raises
        RequestError with the failure of each address that was asked.
        """
        failures: dict[str, str] = {}
        for endpoints in self._request_order(leader):
            listing = self._fetch_first(endpoints, leader, deadline, failures)
            if listing is not None:
                self._preferred = listing.endpoint
                return listing
        self._preferred = None
        raise RequestError("; ".join(failures.values()))

    def _fetch_first(
        self, endpoints: Iterable[RestEndpoint], leader: str | None, deadline: float, failures: dict[str, str]
    ) -> LeaderListing | None:
        """Ask all endpoints at once and return the first listing; if there is none, add to failures and return None.

        One that has not answered an earlier request is not asked again: that answer counts.
        """
        pending: dict[Future[LeaderListing], RestEndpoint] = {}
        for endpoint in endpoints:
            earlier = self._requests.get(endpoint.url)
            if earlier is not None and not earlier.done():
                pending[earlier] = endpoint
                failures[endpoint.url] = f"{endpoint.url} has not answered an earlier request yet"
                continue
            request = partial(self._fetch_leader_listing, endpoint, leader, deadline)
            future = self._requests[endpoint.url] = run_in_thread("flink-rest", request)
            pending[future] = endpoint
            failures[endpoint.url] = f"{endpoint.url} does not answer in time"
        while pending and (done := wait_for(pending, max(deadline - time.monotonic(), 0), FIRST_COMPLETED).done):
            for future in done:
                endpoint = pending.pop(future)
                try:
                    return future.result()
                except RequestError as error:
                    failures[endpoint.url] = str(error)
        return None

    def _request_order(self, leader: str | None) -> Sequence[Sequence[RestEndpoint]]:
        """Return groups of endpoints: the next group is asked only if the one before it failed."""
        leading = self._find_endpoint(leader)
        if leading is not None:
            return [[leading]]
        preferred = [endpoint for endpoint in self._endpoints if endpoint is self._preferred]
        others = [endpoint for endpoint in self._endpoints if endpoint is not self._preferred]
        return [group for group in (preferred, others) if group]

    def _find_endpoint(self, leader: str | None) -> RestEndpoint | None:
        """Return the leader's endpoint: by host and port, or by host if that has only one (behind a proxy)."""
        if leader is None or not leader.startswith(("http://", "https://")):
            return None
        parts = urlsplit(leader)
        same_host = [endpoint for endpoint in self._endpoints if endpoint.host == parts.hostname]
        same_port = [endpoint for endpoint in same_host if endpoint.port == parts.port]
        if same_port:
            return same_port[0]
        return same_host[0] if len(same_host) == 1 else None

    def _fetch_leader_listing(self, endpoint: RestEndpoint, leader: str | None, deadline: float) -> LeaderListing:
        """Return the endpoint's listing, unless it is a 1.4 that was leader before the one ZooKeeper names."""
        listing = self._fetch_any_overview(endpoint, deadline)
        if listing.is_1_4 and leader is not None and not leader.startswith("http"):
            rpc_address = self._fetch_rpc_address(endpoint, deadline)
            if rpc_address is not None and f"@{rpc_address}/" not in leader.lower():
                del self._rpc_addresses[endpoint.url]
                msg = f"{endpoint.url} responds as the leader, but ZooKeeper names {leader}"
                raise RequestError(msg)
        return listing

    def _fetch_any_overview(self, endpoint: RestEndpoint, deadline: float) -> LeaderListing:
        """Return the listing from the path that the endpoint's version has, which the first request finds out."""
        known_path = self._overview_paths.get(endpoint.url)
        if known_path is not None:
            try:
                return self._fetch_overview(endpoint, known_path, deadline)
            except NotFoundError:
                del self._overview_paths[endpoint.url]  # it may have been upgraded
                raise
        try:
            return self._fetch_overview(endpoint, _OVERVIEW, deadline)
        except HttpStatusError as error:
            try:
                return self._fetch_overview(endpoint, _OLD_OVERVIEW, deadline)
            except HttpStatusError:
                raise error from None

    def _fetch_overview(self, endpoint: RestEndpoint, path: str, deadline: float) -> LeaderListing:
        overview_type: type[JobsOverview | OldJobsOverview] = JobsOverview if path == _OVERVIEW else OldJobsOverview
        jobs = endpoint.fetch(path, overview_type, deadline).jobs
        self._overview_paths[endpoint.url] = path
        return LeaderListing(endpoint, jobs, path == _OLD_OVERVIEW)

    def _fetch_rpc_address(self, endpoint: RestEndpoint, deadline: float) -> str | None:
        """Return host:port of a 1.4's actor system, by which ZooKeeper names the leader; None if not configured."""
        if endpoint.url not in self._rpc_addresses:
            entries = endpoint.fetch("/jobmanager/config", tuple[ConfigEntry, ...], deadline)
            config = {entry.key: entry.value for entry in entries}
            host, port = config.get("jobmanager.rpc.address"), config.get("jobmanager.rpc.port")
            if host is None or port is None:
                return None
            self._rpc_addresses[endpoint.url] = f"{host}:{port}".lower()
        return self._rpc_addresses[endpoint.url]
