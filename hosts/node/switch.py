"""Switches a serving instance to another revision: fetches it, replaces the engine, rolls back on failure."""

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpufleet.domain.model import Phase
from hosts.node.boot import BootSequence
from hosts.node.drain import is_quiet
from hosts.node.ports import StepError, StoppedError
from hosts.node.state import NodeState
from serving.cache.disk import Cache, CacheError
from serving.cache.manifest import ManifestError
from serving.cache.sync import Progress, Sync, served_digest

FOLLOW: Final = timedelta(seconds=30)
"""Interval between checks of the model's served.json."""
_LOOK_AGAIN_S: Final = 0.25


class SwitchBusyError(RuntimeError):
    """This instance cannot switch its revision now. The message gives the reason."""


@dataclass(slots=True, kw_only=True)
class RevisionSwitch:
    """Switches the revision of one instance. The caller ensures that one instance of a pool switches at a time."""

    boot: BootSequence
    settle: timedelta
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def life(self) -> NodeState:
        return self.boot.life

    def ask(self, digest: str) -> threading.Thread | None:
        """Start the switch to `digest`; None if it is already served. Raises SwitchBusyError."""
        if digest == self.life.digest and self.life.ready:
            return None
        if not self.life.ready:
            raise SwitchBusyError(
                f"the instance is {self.life.phase.value}; only one that is ready changes its revision"
            )
        if not self._guard.acquire(blocking=False):
            raise SwitchBusyError("it changes its revision already")
        thread = threading.Thread(target=self._guarded, args=(digest,), name="switch", daemon=True)
        thread.start()
        return thread

    def follow(self) -> str | None:
        """Fetch the revision that the bucket declares as served into the cache. Return the error message, or None."""
        settings = self.boot.settings
        if not self.life.ready:
            return None
        try:
            digest = served_digest(self.boot.world.cloud.store(settings.bucket), settings.model)
            if digest != self.life.digest:
                self._bring(digest)
            self.life.staged = digest
        except StoppedError:
            return None
        except (CacheError, ManifestError, OSError, ValueError) as error:
            return f"model {settings.model}: {error}"
        return None

    def _guarded(self, digest: str) -> None:
        try:
            self.change(digest)
        finally:
            self._guard.release()

    def change(self, digest: str) -> None:
        """Switch to `digest`, or roll back. Never raises for external errors; `NodeState` records the result."""
        life, before = self.life, self.life.digest
        life.switching_to, life.switch_error = digest, None
        try:
            path = self._bring(digest)
        except (CacheError, ManifestError, OSError, ValueError) as error:
            life.switching_to, life.switch_error = None, f"{digest[:12]}: {error}"
            return
        except StoppedError:
            life.switching_to, life.switch_error = None, f"{digest[:12]}: the instance drains"
            return
        try:
            self._wait_until_quiet()
            self._serve(digest, path, before)
        except StoppedError:
            # A drain started: its owner takes over.
            life.switch_error = f"{digest[:12]}: the instance drains"
        finally:
            life.switching_to = None

    def _serve(self, digest: str, path: Path, before: str | None) -> None:
        try:
            self.boot.replace_engine(digest, path)
            return
        except StepError as error:
            self.life.switch_error = f"{digest[:12]}: {error}"
        old = Cache(self.boot.cache_root).find_digest(before) if before else None
        try:
            if before is None or old is None:
                raise StepError("the revision before is gone from the cache")
            self.boot.replace_engine(before, old)
        except StepError as error:
            self.life.enter(Phase.FAILED, f"{self.life.switch_error}; and the way back: {error}")

    def _bring(self, digest: str) -> Path:
        settings = self.boot.settings
        store = self.boot.world.cloud.store(settings.bucket)
        sync = Sync(store=store, cache=Cache(self.boot.cache_root), model=settings.model, go_on=self._go_on)
        return self.boot.bring(sync, digest, Progress())

    def _go_on(self) -> None:
        if self.life.order is not None:
            raise StoppedError

    def _wait_until_quiet(self) -> None:
        """Wait until all routers are notified and no request runs, or until the drain deadline has passed."""
        now = self.life.now
        deadline = now() + self.boot.settings.drain_deadline
        quiet_since: datetime | None = None
        while now() < deadline:
            if self.life.order is not None:
                raise StoppedError
            load = self.boot.world.engine.load()
            quiet_since = (quiet_since or now()) if is_quiet(load) and self.life.routers_know else None
            if quiet_since is not None and now() - quiet_since >= self.settle:
                return
            self.boot.world.sleep(_LOOK_AGAIN_S)
