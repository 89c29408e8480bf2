"""Reads the YAML of a settings file safely: size limits, unique keys, robust against any content."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpufleet.domain.parsed import is_list, is_map

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_VALUES: Final = 100_000
"""Maximum number of values in a settings file after its aliases are expanded."""


class FileError(Exception):
    """The file is not a settings file. The message gives path and reason."""


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the `config:` map of a settings file. Raises FileError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FileError(f"{path}: is larger than 1 MiB, so it is not a settings file")
        raw: Any = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a safe loader
        _unfold(raw, {}, ())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise FileError(f"{path}: is nested too deep to be a settings file") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: is not text in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date, or a number with thousands of digits
        raise FileError(f"{path}{_where(error)}") from error
    config: Any = raw.get("config") if is_map(raw) else None
    if not is_map(config):
        problem = "is empty" if raw is None else f"expected a map, got {'a list' if is_list(raw) else 'one value'}"
        problem = "has no config: map" if is_map(raw) else problem
        raise FileError(f"{path}: {problem}; write it as stacks/config/Pulumi.aws-local.yaml shows")
    return config


def _where(error: Exception) -> str:
    """Return the line, column and reason of a YAML error."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f": is not YAML: {' '.join(str(error).split())}"
    mark, tab = error.problem_mark, "'\\t'"
    problem = " ".join(filter(None, (error.context, error.problem)))
    if tab in problem:
        problem = "a tab; indent with spaces"
    return f", line {mark.line + 1}, column {mark.column + 1}: is not YAML: {problem}"


def _unfold(value: Any, sizes: dict[int, int], inside: tuple[int, ...]) -> int:
    """Return the number of values after the expansion of aliases.

    Raises YAMLError for too many values (a few lines can expand to billions) and for an alias that contains itself.
    """
    if not is_map(value) and not is_list(value):
        return 1
    key = id(value)
    if key in inside:
        raise yaml.YAMLError("an alias refers to a value that contains it; write the value out")
    if key not in sizes:
        items = value.values() if is_map(value) else value
        sizes[key] = 1 + sum(_unfold(item, sizes, (*inside, key)) for item in items)
    if sizes[key] > MAX_VALUES:
        raise yaml.YAMLError(f"its aliases expand to more than {MAX_VALUES} values; write the values out")
    return sizes[key]


class _UniqueKeys(yaml.SafeLoader):
    """Refuses duplicate keys in a map: YAML would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, Hashable):
                problem = f"{key!r:.80} is a key that is not a scalar; write it as text"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if isinstance(key, str) and key in seen:
                first = seen[key].start_mark.line + 1
                problem = f"{key!r} is written twice, first in line {first}; keep one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen[key] = key_node
        return super().construct_mapping(node, deep)
