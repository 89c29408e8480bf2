"""`make setup`: everything that the demo and the tests need, said before it is installed."""
