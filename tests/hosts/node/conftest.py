from tests.fixtures.node.bucket import bucket as bucket
