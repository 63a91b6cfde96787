"""Which of a cluster's JobManagers is asked: the leader where that is known, else one that has answered."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.sources.background import run_in_thread
from agent.sources.flink.responses import Job, Listing, OldListing, Property
from agent.sources.flink.rest import RestEndpoint
from agent.sources.http import HttpStatusError, RequestError

_NEW, _OLD = "/jobs/overview", "/joboverview"


class Listed(NamedTuple):
    """All jobs, and who told. old: whether it is a 1.4, of which none but the leader tells."""

    endpoint: RestEndpoint
    jobs: tuple[Job, ...]
    old: bool


class JobManagers:
    """The REST addresses of a cluster. One that answers is kept to; all are asked at once where none does."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._endpoints = [RestEndpoint(url) for url in urls]
        self._kept: RestEndpoint | None = None
        self._dialects: dict[str, str] = {}
        self._leads_at: dict[str, str] = {}
        self._asked: dict[str, Future[Listed]] = {}

    def listing(self, leader: str | None, deadline: float) -> Listed:
        """The jobs as the leader has them. Raises RequestError with what each address asked has said.

        leader: its address as ZooKeeper tells it, None where nothing tells. deadline: of time.monotonic().
        """
        complaints: dict[str, str] = {}
        for endpoints in self._whom(leader):
            listed = self._first(endpoints, leader, deadline, complaints)
            if listed is not None:
                self._kept = listed.endpoint
                return listed
        self._kept = None
        raise RequestError("; ".join(complaints.values()))

    def _first(
        self, endpoints: Iterable[RestEndpoint], leader: str | None, deadline: float, complaints: dict[str, str]
    ) -> Listed | None:
        """The first answer of endpoints that are asked at once; None where there is none, then complaints say why."""
        waiting: dict[Future[Listed], RestEndpoint] = {}
        for endpoint in endpoints:
            before = self._asked.get(endpoint.url)
            if before is not None and not before.done():
                complaints[endpoint.url] = f"{endpoint.url} still owes an answer to an earlier request"
                continue
            future = self._asked[endpoint.url] = run_in_thread(
                "flink-rest", partial(self._ask, endpoint, leader, deadline)
            )
            waiting[future] = endpoint
            complaints[endpoint.url] = f"{endpoint.url} does not answer in time"
        while waiting and (done := wait_for(waiting, max(deadline - time.monotonic(), 0), FIRST_COMPLETED).done):
            for future in done:
                endpoint = waiting.pop(future)
                try:
                    return future.result()
                except RequestError as error:
                    complaints[endpoint.url] = str(error)
        return None

    def _whom(self, leader: str | None) -> Sequence[Sequence[RestEndpoint]]:
        """Whom to ask first, and whom where these do not answer."""
        known = self._endpoint_of(leader)
        if known is not None:
            return [[known]]
        kept = [one for one in self._endpoints if one is self._kept]
        return [one for one in (kept, [one for one in self._endpoints if one is not self._kept]) if one]

    def _endpoint_of(self, leader: str | None) -> RestEndpoint | None:
        """The address that is the leader's own: by host and port, else by the host where only one is there."""
        if leader is None or not leader.startswith(("http://", "https://")):
            return None
        parts = urlsplit(leader)
        there = [one for one in self._endpoints if one.host == parts.hostname]
        same = [one for one in there if one.port == parts.port]
        if same:
            return same[0]
        return there[0] if len(there) == 1 else None

    def _ask(self, endpoint: RestEndpoint, leader: str | None, deadline: float) -> Listed:
        listed = self._list(endpoint, deadline)
        if listed.old and leader is not None and not leader.startswith("http"):
            there = self._actor_system(endpoint, deadline)
            if there is not None and f"@{there}/" not in leader.lower():
                del self._leads_at[endpoint.url]
                msg = f"{endpoint.url} answers as if it led, but ZooKeeper names {leader} as the leader"
                raise RequestError(msg)
        return listed

    def _list(self, endpoint: RestEndpoint, deadline: float) -> Listed:
        """The listing in the endpoint's own words, which it is tried by; a standby of 1.4 sends on to the leader."""
        known = self._dialects.get(endpoint.url)
        if known is not None:
            try:
                return self._told(endpoint, known, deadline)
            except HttpStatusError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    del self._dialects[endpoint.url]  # it has been upgraded, perhaps
                raise
        try:
            return self._told(endpoint, _NEW, deadline)
        except HttpStatusError as error:
            try:
                return self._told(endpoint, _OLD, deadline)
            except HttpStatusError:
                raise error from None

    def _told(self, endpoint: RestEndpoint, path: str, deadline: float) -> Listed:
        shape: type[Listing | OldListing] = Listing if path == _NEW else OldListing
        listed = Listed(endpoint, endpoint.ask(path, shape, deadline).jobs, path == _OLD)
        self._dialects[endpoint.url] = path
        return listed

    def _actor_system(self, endpoint: RestEndpoint, deadline: float) -> str | None:
        """host:port of a 1.4's actors, which is how ZooKeeper names the leader; None where it does not tell."""
        if endpoint.url not in self._leads_at:
            config = endpoint.ask("/jobmanager/config", tuple[Property, ...], deadline)
            told = {one.key: one.value for one in config}
            host, port = told.get("jobmanager.rpc.address"), told.get("jobmanager.rpc.port")
            if host is None or port is None:
                return None
            self._leads_at[endpoint.url] = f"{host}:{port}".lower()
        return self._leads_at[endpoint.url]
