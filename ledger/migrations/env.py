"""What Alembic runs: the migrations on the connection that `ledger.schema` holds open."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
