"""The embedded clouds: AWS and Google Cloud on loopback, for the demo and the tests only."""
