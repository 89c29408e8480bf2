"""The activity of slices and of shared accelerator devices."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    without_rowid = "without rowid" if op.get_bind().dialect.name == "sqlite" else ""
    op.execute(f"""
create table if not exists unit_hours (
    environment varchar(128) not null, hour bigint not null, instance_id varchar(128) not null,
    device varchar(128) not null, slice varchar(128) not null, profile varchar(64) not null,
    tenant varchar(400) not null, engine varchar(64) not null, model varchar(256) not null,
    seen varchar(90) not null, busy varchar(90) not null, idle varchar(90) not null,
    engine_busy varchar(90) not null, engine_idle varchar(90) not null,
    primary key (environment, hour, instance_id, device, slice, profile, tenant, engine, model)
) {without_rowid}
""")
