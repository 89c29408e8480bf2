"""A Pulumi language host for Python, for machines where Pulumi's own is not available.

The engine starts it as `pulumi-language-python ENGINE_ADDRESS`, reads the port from its first line and speaks the
LanguageRuntime protocol (pulumi/proto/language.proto) to it. It needs the `pulumi` package and nothing of gpu-fleet.
"""
