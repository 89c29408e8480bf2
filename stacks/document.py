"""The fleet document of a deployed environment."""

from collections.abc import Mapping, Sequence
from typing import Final

from fleet import document
from fleet.document import FleetDocument, GroupEntry, Origin, Prices, Router
from stacks.settings import Settings

LEDGER_ON_CONTROL_HOST: Final = "sqlite:////var/lib/gpu-fleet/ledger.db"


def describe(settings: Settings, groups: Mapping[str, Sequence[GroupEntry]], bucket_url: str, origin: Origin) -> str:
    """The document as text, from settings and from what the cloud called the groups of each pool."""
    return document.render(
        FleetDocument(
            version=document.VERSION,
            environment=settings.environment,
            cloud=settings.cloud,
            region=settings.region,
            account=settings.account,
            generated_by=origin,
            bucket=bucket_url,
            prometheus_url=settings.prometheus_url or f"http://control.{settings.domain}:9090",
            ledger_url=settings.ledger_url or LEDGER_ON_CONTROL_HOST,
            router=Router(url=settings.router_url or _router_url(settings)),
            notify=settings.notify,
            budget=settings.budget,
            pools=tuple(
                document.Pool(
                    name=pool.name,
                    model=f"models/{pool.model}",
                    engine=pool.engine.kind,
                    owner=pool.owner,
                    team_split=pool.team_split,
                    target=pool.target,
                    spare=pool.spare,
                    min=pool.min,
                    max=pool.max,
                    drain_deadline=pool.drain_deadline,
                    groups=tuple(groups[pool.name]),
                    watchdogs=pool.watchdogs,
                )
                for pool in settings.pools
            ),
            prices=Prices(overrides=settings.prices),
        )
    )


def _router_url(settings: Settings) -> str:
    host = "router" if settings.control and settings.control.routers > 1 else "control"
    return f"http://{host}.{settings.domain}:8080"
