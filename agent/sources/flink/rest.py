"""Asking a JobManager's REST address for JSON. What the answers mean lives in flink_answers."""

from typing import TypeVar

import msgspec

from agent.sources.http import Endpoint, RequestError

T = TypeVar("T")


class RestEndpoint(Endpoint):
    """One REST address of a Flink cluster."""

    def ask(self, path: str, shape: type[T], deadline: float) -> T:
        """The answer to GET as a msgspec type. Raises RequestError; deadline: of time.monotonic()."""
        body = self.get(path, "application/json", deadline)
        try:
            # 1.4 answers with nothing at all where it has no metrics, which it asks the TaskManagers for only then.
            return msgspec.json.decode(body or b"[]", type=shape)
        except ValueError as error:  # msgspec's errors, text that is no UTF-8
            msg = f"{self.url} answers {path} with what Flink does not: {error}"
            raise RequestError(msg) from error
        except RecursionError as error:
            msg = f"{self.url} answers {path} with JSON that is nested too deep"
            raise RequestError(msg) from error
