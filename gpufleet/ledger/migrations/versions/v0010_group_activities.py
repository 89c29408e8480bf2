"""What passes have read of what happened to each group, and until when."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("""
create table if not exists group_reads (
    fleet varchar(128) not null, group_name varchar(128) not null, desired integer not null, members text not null,
    leaving text not null, read_at bigint, silent_at bigint, primary key (fleet, group_name)
)
""")
    op.execute("""
create table if not exists group_activities (
    fleet varchar(128) not null, group_name varchar(128) not null, id varchar(256) not null, at bigint not null,
    kind varchar(32) not null, instance_id varchar(128), detail text not null, zones text not null,
    account_wide integer not null, primary key (fleet, group_name, id)
)
""")
    op.execute("create index if not exists group_activities_by_time on group_activities (fleet, at)")
