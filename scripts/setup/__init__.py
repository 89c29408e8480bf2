"""`make setup`: installs everything that the demo and the tests need, and lists it first."""
