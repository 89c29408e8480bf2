"""What the last pass of the cost watchdog added up."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("""
create table if not exists cost_sums (
    fleet varchar(128) not null, span varchar(16) not null, pool varchar(64) not null, since bigint not null,
    known_until bigint not null, usd varchar(60) not null, idle_usd varchar(60) not null, input_usd varchar(60),
    output_usd varchar(60), blended_usd varchar(60), unpriced integer not null, primary key (fleet, span, pool)
)
""")
