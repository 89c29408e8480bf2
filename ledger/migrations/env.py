"""What Alembic runs: the migrations on the connection that `ledger.schema` holds open."""

from alembic import context

from ledger.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, transactional_ddl=False
)
context.run_migrations()
