"""`python -m scripts.vocabulary`: finds words that this project does not use, and names that are defined twice.

`banned.toml` lists words and phrases with their replacements. `allowed.toml` lists exceptions with a reason.
"""
