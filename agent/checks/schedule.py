"""When Spark checks run by themselves: their schedules in rules.toml, by the wall clock."""

from collections.abc import Callable

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.schedulers.background import BackgroundScheduler

from agent.config.schedules import trigger
from agent.config.settings import Settings


class CheckSchedule:
    """The schedules of the enabled checks. A run that fell into a suspended time is made up for once."""

    def __init__(
        self, settings: Settings, run: Callable[[str], None], failed: Callable[[str, BaseException], None]
    ) -> None:
        """run: queues a check, by its name. failed: told what raised instead."""
        self._triggers = {
            name: trigger(check.schedule)
            for name, check in settings.checks.items()
            if settings.spark.enabled and check.enabled and check.schedule
        }
        self._run = run
        self._failed = failed
        self._scheduler = BackgroundScheduler(timezone="UTC")

    def start(self) -> None:
        """Start the scheduler's thread."""
        self._scheduler.add_listener(lambda event: self._failed(event.job_id, event.exception), EVENT_JOB_ERROR)
        for check, schedule in self._triggers.items():
            self._scheduler.add_job(
                self._run,
                schedule,
                [check],
                id=f"check {check}",
                misfire_grace_time=None,
                coalesce=True,
                max_instances=1,
            )
        self._scheduler.start()

    def close(self) -> None:
        """Start no more runs."""
        self._scheduler.shutdown(wait=False)
