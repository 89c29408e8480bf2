"""`aws` of an emulated machine: any operation of any service, and `s3 cp`, with real boto3 and the machine's role."""

import contextlib
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jmespath

from gpufleet.domain.parsed import is_list
from localcloud.aws.request_shapes import Operation, RequestShape
from localcloud.aws.sdk import BotoCoreError, ClientError, Session, session, spelled
from localcloud.machines.image import this_machine

_GLOBAL: Final = ("--region", "--output", "--query", "--endpoint-url", "--profile", "--cli-connect-timeout")
_SWITCHES: Final = ("--only-show-errors", "--quiet", "--no-progress", "--no-cli-pager", "--no-paginate")


def main(arguments: list[str]) -> int:
    """`aws SERVICE OPERATION --parameter value…`, `aws s3 cp SOURCE TARGET`."""
    options: dict[str, str] = {}
    rest: list[str] = []
    arguments = list(arguments)
    while arguments:
        argument = arguments.pop(0)
        flag, equals, value = argument.partition("=")
        if flag in _GLOBAL:
            options[flag] = value if equals else arguments.pop(0)
        elif argument not in _SWITCHES:
            rest.append(argument)
    if len(rest) < 2:
        this_machine.fail("usage: aws SERVICE OPERATION [parameters]", 252)
    made = session(region=options.get("--region"))
    try:
        if rest[:2] == ["s3", "cp"]:
            return _copy(made, rest[2:])
        return _call(made, rest, options)
    except ClientError as error:
        this_machine.fail(f"\n{error}", 254)
    except BotoCoreError as error:
        this_machine.fail(f"\n{error}", 255)


def _copy(session: Session, arguments: list[str]) -> int:
    if len(arguments) != 2:
        this_machine.fail(f"aws s3 cp: give a source and a target, not {arguments}", 252)
    source, target = arguments
    client = session.client("s3")
    if source.startswith("s3://"):
        bucket, _, key = source.removeprefix("s3://").partition("/")
        body = client.get_object(Bucket=bucket, Key=key)["Body"]
        if target == "-":
            for chunk in body.iter_chunks(1 << 20):
                sys.stdout.buffer.write(chunk)
            return 0
        path = Path(target)
        _write(body, path / Path(key).name if path.is_dir() or target.endswith("/") else path)
        return 0
    bucket, _, key = target.removeprefix("s3://").partition("/")
    client.upload_file(source, bucket, key)
    return 0


def _write(body: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in body.iter_chunks(1 << 20):
            file.write(chunk)


def _call(session: Session, arguments: list[str], options: dict[str, str]) -> int:
    service = {"s3api": "s3"}.get(arguments[0], arguments[0])
    client = session.client(service)
    operations: list[str] = client.meta.service_model.operation_names
    names = {spelled(name, "-"): name for name in operations}
    if arguments[1] not in names:
        this_machine.fail(f"aws: unknown operation {arguments[0]} {arguments[1]}", 252)
    operation: Operation = client.meta.service_model.operation_model(names[arguments[1]])
    parameters, outfile = _parameters(operation.input_shape, arguments[2:])
    answer = getattr(client, spelled(names[arguments[1]]))(**parameters)
    answer.pop("ResponseMetadata", None)
    if outfile is not None and "Body" in answer:
        _write(answer.pop("Body"), Path(outfile))
    _print(answer, options)
    return 0


def _parameters(shape: RequestShape | None, arguments: list[str]) -> tuple[dict[str, Any], str | None]:
    """Kebab-case words to the parameters of an operation; a word without a flag is the file to write."""
    fields: Mapping[str, RequestShape] = shape.members if shape else {}
    members = {spelled(name, "-"): (name, member) for name, member in fields.items()}
    found: dict[str, Any] = {}
    outfile = None
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--"):
            outfile = argument
            continue
        flag, _, given = argument[2:].partition("=")
        is_off = flag.startswith("no-") and flag[3:] in members
        if is_off or flag not in members:
            if not is_off:
                this_machine.fail(f"aws: unknown option --{flag}", 252)
            found[members[flag[3:]][0]] = False
            continue
        name, member = members[flag]
        if member.type_name == "boolean":
            found[name] = True
            continue
        values = [given] if given else []
        while not given and position < len(arguments) and not arguments[position].startswith("--"):
            values.append(arguments[position])
            position += 1
            if member.type_name != "list":
                break
        found[name] = _value(member, values)
    return found, outfile


def _value(member: RequestShape, values: list[str]) -> Any:
    joined = " ".join(values)
    if member.type_name in ("integer", "long"):
        return int(joined)
    if member.type_name in ("structure", "map") or joined.startswith(("[", "{")):
        return json.loads(joined)
    if member.type_name == "list":
        return [_shorthand(value) for value in values]
    return joined


def _shorthand(value: str) -> Any:
    """`Name=a,Values=b` of the AWS CLI; other text stays text."""
    if "=" not in value:
        return value
    found: dict[str, Any] = {}
    last = ""
    for part in value.split(","):
        key, equals, content = part.partition("=")
        if equals:
            last = key
            found[key] = [content] if key == "Values" else content
        elif isinstance(found.get(last), list):
            found[last].append(part)
    return found


def _print(answer: Any, options: dict[str, str]) -> None:
    query = options.get("--query")
    found = jmespath.search(query, answer) if query else answer
    if options.get("--output") == "text":
        items = found if is_list(found) else [found]
        print("\t".join("None" if item is None else str(item) for item in items))
    elif found:
        print(json.dumps(found, indent=4, default=_json))


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[2:]))
