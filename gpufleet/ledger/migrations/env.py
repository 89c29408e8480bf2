"""What Alembic runs: the migrations on the connection that `gpufleet.ledger.schema` holds open."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
