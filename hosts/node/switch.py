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
    quiet_time: timedelta
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def state(self) -> NodeState:
        return self.boot.state

    def ask(self, digest: str) -> threading.Thread | None:
        """Start the switch to `digest`; None if it is already served. Raises SwitchBusyError."""
        if digest == self.state.digest and self.state.ready:
            return None
        if not self.state.ready:
            raise SwitchBusyError(
                f"the instance is {self.state.phase.value}; only a ready instance can switch its revision"
            )
        if not self._guard.acquire(blocking=False):
            raise SwitchBusyError("a switch to another revision is already in progress")
        thread = threading.Thread(target=self._guarded, args=(digest,), name="switch", daemon=True)
        thread.start()
        return thread

    def follow(self) -> str | None:
        """Fetch the revision that the bucket declares as served into the cache. Return the error message, or None."""
        settings = self.boot.settings
        if not self.state.ready:
            return None
        try:
            digest = served_digest(self.boot.services.cloud.store(settings.bucket), settings.model)
            if digest != self.state.digest:
                self._fetch(digest)
            self.state.staged = digest
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
        state, before = self.state, self.state.digest
        state.switching_to, state.switch_error = digest, None
        try:
            path = self._fetch(digest)
        except (CacheError, ManifestError, OSError, ValueError) as error:
            state.switching_to, state.switch_error = None, f"{digest[:12]}: {error}"
            return
        except StoppedError:
            state.switching_to, state.switch_error = None, f"{digest[:12]}: the instance drains"
            return
        try:
            self._wait_until_quiet()
            self._serve(digest, path, before)
        except StoppedError:
            # A drain started: its owner takes over.
            state.switch_error = f"{digest[:12]}: the instance drains"
        finally:
            state.switching_to = None

    def _serve(self, digest: str, path: Path, before: str | None) -> None:
        try:
            self.boot.replace_engine(digest, path)
            return
        except StepError as error:
            self.state.switch_error = f"{digest[:12]}: {error}"
        old = Cache(self.boot.cache_root).find_digest(before) if before else None
        try:
            if before is None or old is None:
                raise StepError("the previous revision is no longer in the cache")
            self.boot.replace_engine(before, old)
        except StepError as error:
            self.state.enter(Phase.FAILED, f"{self.state.switch_error}; the rollback failed: {error}")

    def _fetch(self, digest: str) -> Path:
        settings = self.boot.settings
        store = self.boot.services.cloud.store(settings.bucket)
        sync = Sync(
            store=store,
            cache=Cache(self.boot.cache_root),
            model=settings.model,
            raise_if_stopped=self._check_not_draining,
        )
        return self.boot.bring(sync, digest, Progress())

    def _check_not_draining(self) -> None:
        if self.state.order is not None:
            raise StoppedError

    def _wait_until_quiet(self) -> None:
        """Wait until all routers are notified and no request runs, or until the drain deadline has passed."""
        now = self.state.now
        deadline = now() + self.boot.settings.drain_deadline
        quiet_since: datetime | None = None
        while now() < deadline:
            if self.state.order is not None:
                raise StoppedError
            load = self.boot.services.engine.load()
            quiet_since = (quiet_since or now()) if is_quiet(load) and self.state.routers_know else None
            if quiet_since is not None and now() - quiet_since >= self.quiet_time:
                return
            self.boot.services.sleep(_LOOK_AGAIN_S)
