"""The local Pulumi provider: real resource requests of the real engine, made against the embedded cloud."""
