"""The Pulumi program: settings, and one deploy() function per cloud."""
