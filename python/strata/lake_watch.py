"""`strata publish --every`: publishes a log whenever it has new compacted files, until stopped."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import lake

# Even if the log is as it was, its files in the tables are compared with it this often.
COMPARED_EVERY_S = 600.0


class Watch:
    """When to publish, and what to say of it."""

    def __init__(self, log: Path, publish: Callable[[], list[lake.Published]], as_json: bool):
        self.log = log
        self.publish = publish
        self.as_json = as_json
        # The state of `archive.json` that the tables have, and since when.
        self.published: tuple[int, int, int] | None = None
        self.compared_s = float("-inf")
        self.problem = ""

    def turn(self, now_s: float) -> None:
        """Publishes if the log may differ from the tables. Errors are reported if they differ from
        the last one, and the next turn tries again."""
        state = self._state()
        is_due = now_s - self.compared_s >= COMPARED_EVERY_S
        if state is not None and state == self.published and not is_due:
            return
        try:
            done = self.publish()
        except Exception as error:
            # Of the log, catalogs, databases and stores: all of them may be back in a while.
            self.published = None
            if str(error) != self.problem:
                self.problem = str(error)
                print(f"strata: {error}; trying again", file=sys.stderr, flush=True)
            return
        is_first = self.published is None
        self.published, self.compared_s = state, now_s
        if self.problem:
            self.problem = ""
            print("strata: published again", file=sys.stderr, flush=True)
        if is_first or any(one.added or one.removed for one in done):
            print(lake.printed(done, None, self.as_json), flush=True)

    def _state(self) -> tuple[int, int, int] | None:
        """What changes whenever `archive.json` is replaced."""
        try:
            found = (self.log / "archive.json").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def watch(watched: Watch, pause_s: float) -> None:
    """Publishes now and after each pause, until interrupted."""
    try:
        while True:
            watched.turn(time.monotonic())
            time.sleep(pause_s)
    except KeyboardInterrupt:
        # To be stopped is how it ends; a publication that was interrupted is made good by the next.
        return
