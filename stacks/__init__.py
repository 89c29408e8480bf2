"""The Pulumi program: settings and one deploy() per cloud."""
