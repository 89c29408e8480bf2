"""The first tables of the ledger."""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """create table if not exists runs (
    cloud varchar(8) not null, instance_id varchar(128) not null, started_at bigint not null,
    environment varchar(128) not null, region varchar(64) not null, zone varchar(64) not null,
    machine_type varchar(64) not null, capacity_type varchar(16) not null, pool varchar(64), model varchar(256),
    owner varchar(128), group_name varchar(128), reservation varchar(128), last_seen_at bigint not null,
    primary key (cloud, instance_id, started_at)
)""",
    "create index if not exists runs_last_seen on runs (environment, last_seen_at)",
    """create table if not exists run_ends (
    cloud varchar(8) not null, instance_id varchar(128) not null, started_at bigint not null,
    cause varchar(16) not null, ended_at bigint not null, exact integer not null,
    primary key (cloud, instance_id, started_at, cause)
)""",
    """create table if not exists token_readings (
    environment varchar(128) not null, instance_id varchar(128) not null, engine varchar(64) not null,
    model varchar(256) not null, at bigint not null, created_at bigint, prompt bigint, cached bigint,
    generation bigint, prefill_ms bigint, decode_ms bigint,
    primary key (environment, instance_id, engine, model, at)
) {without_rowid}""",
    "create index if not exists token_readings_at on token_readings (environment, at)",
    """create table if not exists token_hours (
    environment varchar(128) not null, instance_id varchar(128) not null, engine varchar(64) not null,
    model varchar(256) not null, hour bigint not null, first_at bigint not null, first_created_at bigint,
    last_at bigint not null, last_created_at bigint, resets integer not null, late integer not null,
    first_prompt bigint, first_cached bigint, first_generation bigint, first_prefill_ms bigint,
    first_decode_ms bigint, last_prompt bigint, last_cached bigint, last_generation bigint,
    last_prefill_ms bigint, last_decode_ms bigint, inner_prompt bigint, inner_cached bigint,
    inner_generation bigint, inner_prefill_ms bigint, inner_decode_ms bigint,
    primary key (environment, instance_id, engine, model, hour)
) {without_rowid}""",
    """create table if not exists engine_processes (
    environment varchar(128) not null, instance_id varchar(128) not null, engine varchar(64) not null,
    model varchar(256) not null, created_at bigint not null, first_at bigint not null,
    primary key (environment, instance_id, engine, model, created_at)
) {without_rowid}""",
    """create table if not exists activity_hours (
    environment varchar(128) not null, instance_id varchar(128) not null, hour bigint not null,
    busy varchar(90) not null, idle varchar(90) not null, primary key (environment, instance_id, hour)
) {without_rowid}""",
    """create table if not exists price_observations (
    sku varchar(128) not null, region varchar(64) not null, zone varchar(64) not null,
    effective_at bigint not null, source varchar(64) not null, usd_per_hour varchar(40) not null,
    observed_at bigint not null, primary key (sku, region, zone, effective_at, source)
)""",
    """create table if not exists reservations (
    cloud varchar(8) not null, reservation varchar(128) not null, started_at bigint not null,
    instances integer not null, environment varchar(128) not null, region varchar(64) not null,
    zone varchar(64) not null, machine_type varchar(64) not null, pool varchar(64), model varchar(256),
    owner varchar(128), ends_at bigint, last_seen_at bigint not null,
    primary key (cloud, reservation, started_at, instances)
)""",
    """create table if not exists passes (
    environment varchar(128) not null, at bigint not null, host varchar(128) not null, metrics_from bigint,
    metrics_until bigint, notes varchar(2000) not null, primary key (environment, at, host)
)""",
    """create table if not exists decisions (
    id {serial}, fleet varchar(128) not null, watchdog varchar(16) not null, resource varchar(200) not null,
    pool varchar(64), action varchar(16) not null, reason varchar(64) not null, detail text not null,
    evidence text not null, from_size integer, to_size integer, usd_per_hour varchar(40), at bigint not null
)""",
    "create index if not exists decisions_resource on decisions (fleet, resource, id)",
    """create table if not exists decision_heads (
    fleet varchar(128) not null, watchdog varchar(16) not null, resource varchar(200) not null,
    action varchar(16) not null, reason varchar(64) not null, sizes varchar(32) not null,
    primary key (fleet, watchdog, resource)
)""",
    """create table if not exists outcomes (
    id {serial}, fleet varchar(128) not null, watchdog varchar(16) not null, resource varchar(200) not null,
    pool varchar(64), action varchar(16) not null, reason varchar(64) not null, kind varchar(16) not null,
    detail text not null, error text, usd_per_hour varchar(40), at bigint not null
)""",
    "create index if not exists outcomes_at on outcomes (fleet, watchdog, at)",
    "create index if not exists outcomes_resource on outcomes (fleet, resource, id)",
    """create table if not exists intents (
    fleet varchar(128) not null, watchdog varchar(16) not null, resource varchar(200) not null,
    decision text not null, at bigint not null, primary key (fleet, watchdog, resource)
)""",
    """create table if not exists targets (
    fleet varchar(128) not null, pool varchar(64) not null, value integer not null, version integer not null,
    primary key (fleet, pool)
)""",
    """create table if not exists target_moves (
    fleet varchar(128) not null, pool varchar(64) not null, version integer not null, value integer not null,
    changed_by varchar(128) not null, reason text not null, because varchar(200), at bigint not null,
    primary key (fleet, pool, version)
)""",
    "create unique index if not exists target_moves_because on target_moves (fleet, pool, because)",
    """create table if not exists leases (
    name varchar(200) not null, holder varchar(200) not null, until bigint not null, primary key (name)
)""",
    """create table if not exists brakes (
    id {serial}, fleet varchar(128) not null, kind varchar(16) not null, scope varchar(128) not null,
    owner varchar(128) not null, reason text not null, since bigint not null, until bigint, released_at bigint,
    released_by varchar(128)
)""",
    "create index if not exists brakes_open on brakes (fleet, released_at)",
    """create table if not exists policies_seen (
    fleet varchar(128) not null, watchdog varchar(16) not null, pool varchar(64) not null,
    digest varchar(64) not null, seen_by varchar(128) not null, at bigint not null,
    primary key (fleet, watchdog, pool, digest)
)""",
    """create table if not exists outbox (
    id {serial}, key varchar(200) not null, channel varchar(128) not null, text text not null,
    detail text not null, created_at bigint not null, state varchar(16) not null, attempts integer not null,
    not_before bigint not null, token varchar(64), taken_at bigint, sent_at bigint, receipt varchar(128),
    error text, unique (key)
)""",
    "create index if not exists outbox_open on outbox (state, channel, id)",
)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    serial = "integer not null primary key autoincrement" if is_sqlite else "bigserial not null primary key"
    without_rowid = "without rowid" if is_sqlite else ""
    for statement in STATEMENTS:
        op.execute(statement.format(serial=serial, without_rowid=without_rowid))
