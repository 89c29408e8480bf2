"""What a fleet's document declared, and how reserved seats were used, from when on; the prices of closed spans."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("""
create table if not exists declared_facts (
    fleet varchar(128) not null, at bigint not null, content text not null, primary key (fleet, at)
)
""")
    op.execute("""
create table if not exists reservation_seats (
    environment varchar(128) not null, cloud varchar(8) not null, reservation varchar(128) not null,
    at bigint not null, started_at bigint not null, instances integer not null, region varchar(64) not null,
    zone varchar(64) not null, machine_type varchar(64) not null, pool varchar(64), model varchar(256),
    owner varchar(128), ends_at bigint, elsewhere integer not null, seats integer, last_seen_at bigint not null,
    primary key (environment, cloud, reservation, at)
)
""")
    op.execute("alter table finals add column prices text")
