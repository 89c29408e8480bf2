"""Energy counters of accelerators, and their hours."""

from alembic import op

revision = "0014"
down_revision = "0013"

STATEMENTS = (
    """create table if not exists energy_readings (
    environment varchar(128) not null, instance_id varchar(128) not null, at bigint not null,
    device varchar(128) not null, millijoules bigint not null,
    primary key (environment, instance_id, at, device)
) {without_rowid}""",
    """create table if not exists energy_hours (
    environment varchar(128) not null, hour bigint not null, instance_id varchar(128) not null,
    devices integer not null, used_mj bigint not null, idle_mj bigint not null, other_mj bigint not null,
    measured_us bigint not null, resets integer not null, rejected integer not null,
    primary key (environment, hour, instance_id)
) {without_rowid}""",
)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    without_rowid = "without rowid" if is_sqlite else ""
    for statement in STATEMENTS:
        op.execute(statement.format(without_rowid=without_rowid))
