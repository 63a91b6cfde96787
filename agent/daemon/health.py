"""What is wrong with the agent itself: logged, and reported as observations that the rule `agent_impaired` judges."""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable

import structlog

from agent.clock import now_ms
from agent.model.encoding import printable
from agent.model.observations.agent import AgentPart
from agent.model.observations.base import Observation

QUIET_MS = 3_600_000
"""How long after its last failure a part counts as working again that nothing shows to work."""

INHERITED_MS = 600_000
"""How long a problem of an earlier run is shown that this run has not met: the part may no longer be configured."""

SETTLED_MS = 60_000
"""How long after its last failure a part counts as working again that works."""

log = structlog.get_logger(__name__)


class Health:
    """The parts of the agent that do not work. Used by any thread."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        """clock: ms since the epoch."""
        self._clock = clock
        self._reports: deque[AgentPart] = deque()
        self._failed_at: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._inherited: set[str] = set()
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by part."""
        with self._lock:
            return dict(self._problems)

    def drain(self) -> list[AgentPart]:
        """Return what was reported since the last call, as observations."""
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def resume(self, known: Iterable[Observation]) -> None:
        """Continue with what was wrong in an earlier run: it is not reported again."""
        now = self._clock()
        parts = (fact for fact in known if isinstance(fact, AgentPart) and fact.problem is not None)
        for fact in parts:
            self._failed_at[fact.part], self._problems[fact.part] = now, fact.problem or ""
            self._inherited.add(fact.part)

    def failed(self, part: str, problem: str) -> None:
        """Log a problem once, and report the part until it works again. problem: sentences for an operator."""
        problem, now = printable(problem), self._clock()
        with self._lock:
            is_new, is_unknown = part not in self._failed_at, (part, problem) not in self._logged
            self._failed_at[part], self._problems[part] = now, problem
            self._logged.add((part, problem))
            self._inherited.discard(part)
        if is_unknown:
            log.error("part_failed", part=part, problem=problem)
        if is_new:
            self._reports.append(AgentPart(at=now, part=part, problem=problem))

    def set_aside(self, part: str, error: Exception) -> None:
        """Report a defect: what it concerns is left out, the rest goes on."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = (
            f"An internal error, {type(error).__name__} in {where.name}: {error}. What it concerns is left out, "
            "so findings may be missing; all else goes on. Please report it with the traceback in the log."
        )
        with self._lock:
            is_unknown = (part, printable(problem)) not in self._logged
        if is_unknown:
            log.error("internal_error", part=part, traceback="".join(traceback.format_exception(error)))
        self.failed(part, problem)

    def works(self, part: str) -> None:
        """Report that the part works again, once it has not failed for a minute: a full disk may take a few bytes."""
        now = self._clock()
        with self._lock:
            if now - self._failed_at.get(part, now) < SETTLED_MS:
                return
            del self._failed_at[part], self._problems[part]
            self._logged = {entry for entry in self._logged if entry[0] != part}
        log.info("part_works", part=part)
        self._reports.append(AgentPart(at=now, part=part))

    def tick(self) -> None:
        """Report the parts that have not failed for QUIET_MS as working again, inherited ones after INHERITED_MS."""
        now = self._clock()
        for part, failed_at in list(self._failed_at.items()):
            if now - failed_at > (INHERITED_MS if part in self._inherited else QUIET_MS):
                self.works(part)
