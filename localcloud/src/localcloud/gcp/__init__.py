"""The emulated Google Cloud: Compute Engine from its discovery document, storage and a fleet's other services."""
