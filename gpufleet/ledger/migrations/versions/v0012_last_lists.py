"""The lists that all pools share, as the last pass read them."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("""
create table if not exists last_lists (
    fleet varchar(128) not null primary key, at bigint not null, lists text not null
)
""")
