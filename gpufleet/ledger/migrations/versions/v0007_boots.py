"""What passes saw of each instance from its launch until it left its group."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("""
create table if not exists boots (
    fleet varchar(128) not null, instance_id varchar(128) not null, launched_at bigint not null,
    pool varchar(64) not null, group_name varchar(128) not null, machine_type varchar(64) not null,
    first_seen_at bigint not null, last_seen_at bigint not null, ready_at bigint, left_at bigint,
    ended_why varchar(32), primary key (fleet, instance_id, launched_at)
)
""")
