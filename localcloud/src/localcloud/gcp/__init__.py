"""Google Cloud on loopback: Compute Engine by its own discovery document, storage, and what a fleet needs beside."""
