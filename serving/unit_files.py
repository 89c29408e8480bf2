"""Text of systemd units: containers on an instance, and packet filters that limit their connections."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

METADATA: Final = {"iptables": "169.254.169.254", "ip6tables": "fd00:ec2::254,fd20:ce::254"}
"""Addresses where both clouds serve a machine's credentials, by the command that filters them."""


def no_metadata() -> Iterator[str]:
    """Yield commands that run before each start: only root (the node agent) can then reach instance metadata.

    The container uses the machine's network. On Google Cloud, the address also serves DNS and time, over UDP and
    port 53; these stay open. The commands delete an existing rule first, so there is only one.
    """
    for command, address in METADATA.items():
        rule = f"OUTPUT -d {address} -p tcp ! --dport 53 -m owner ! --uid-owner 0 -j REJECT"
        yield f"-{command} -w -D {rule}"
        # a kernel without IPv6 has no such route, so this command may fail
        yield f"{'-' if command == 'ip6tables' else ''}{command} -w -I {rule}"


def no_connections(group: int, *, beyond: str = "", metadata: bool = False) -> Iterator[str]:
    """Yield commands that run before each start: the group's processes accept connections but cannot open any.

    `beyond`: an interface through which they can. `metadata`: they can also reach instance metadata, over IPv4.
    """
    device = f"! -o {beyond} " if beyond else ""
    for command, address in METADATA.items():
        except_metadata = f"! -d {address} " if metadata and command == "iptables" else ""
        owner = f"-m owner --gid-owner {group}"
        rule = f"OUTPUT {device}{except_metadata}{owner} -m conntrack --ctstate NEW -j REJECT"
        yield f"-{command} -w -D {rule}"
        yield f"{'-' if command == 'ip6tables' else ''}{command} -w -I {rule}"


def container_unit(what: str, name: str, arguments: Sequence[str], before: Sequence[str] = ()) -> str:
    """Return the unit of a container in the machine's network. `arguments`: docker options, image and arguments."""
    return unit_text(
        description=f"gpu-fleet {what}",
        command=["docker", "run", "--rm", f"--name={name}", "--network=host", *arguments],
        before=(f"-docker rm --force {name}", *before),
        stop_s=10,
        more=("Restart=always", "RestartSec=5"),
    )


def unit_text(  # noqa: PLR0913 - the parts of a unit
    *,
    description: str,
    command: Sequence[str],
    before: Sequence[str],
    stop_s: int,
    more: Sequence[str],
    after: Sequence[str] = (),
) -> str:
    """Return a systemd unit. `before`: commands that run before each start; with a leading `-`, one may fail.

    `after`: units that start earlier and stop later.
    """
    lines = [
        "[Unit]",
        f"Description={description}",
        "Wants=network-online.target",
        " ".join(("After=network-online.target docker.service", *after)),
        "StartLimitIntervalSec=600",
        "StartLimitBurst=4",
        "",
        "[Service]",
        "Type=exec",
        *(f"ExecStartPre={one}" for one in before),
        "ExecStart=" + " ".join(quote(word) for word in command),
        "KillMode=mixed",
        "KillSignal=SIGTERM",
        f"TimeoutStopSec={stop_s}",
        *more,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """Quote one argument of ExecStart for systemd, with specifiers and variables disabled."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n")
    return f'"{escaped}"' if not escaped or re.search(r"[\s\"'\\;]", escaped) else escaped
