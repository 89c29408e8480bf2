"""Runs with vLLM's own Python, not with the tests' Python: reads jobs as JSON from standard input, writes JSON.

`arguments`: vLLM's own parser parses each list. `blocks`: a real engine loads each model folder and reports the
number of blocks of its cache. Each engine runs in its own process, forked after the import, because the import
takes longer than everything else.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false, reportUnknownMemberType=false
import json
import os
import sys
import traceback
from typing import Any


def parse(lists: list[list[str]]) -> list[str | None]:
    """Return None or vLLM's error for each list."""
    import argparse

    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False, allow_abbrev=False))

    def check(arguments: list[str]) -> str | None:
        try:
            found = parser.parse_args(arguments)
            found.model = found.model_tag
            validate_parsed_serve_args(found)
        except (argparse.ArgumentError, SystemExit, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    return [check(arguments) for arguments in lists]


def blocks(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the engine's cache data, or its error, for each job (`model`, `options`)."""
    from vllm import LLM

    def one(job: dict[str, Any]) -> dict[str, Any]:
        engine = LLM(
            model=job["model"],
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            distributed_executor_backend="uni",
            **job["options"],
        )
        config = engine.llm_engine.vllm_config.cache_config
        return {"blocks": config.num_gpu_blocks, "block_size": config.block_size}

    return [forked(one, job) for job in jobs]


def forked(work: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a child process and return its result: an engine leaves state that affects the next one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work(job)
        except BaseException as error:  # noqa: BLE001 - a child must not continue as its parent
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or '{"error": "the engine died without a word"}')


def main() -> None:
    """Run the jobs."""
    jobs = json.load(sys.stdin)
    # libraries print to standard output, which is reserved for the result
    answer, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    found = {
        name: {"arguments": parse, "blocks": blocks}[name](value)  # pyright: ignore[reportArgumentType]
        for name, value in jobs.items()
    }
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    main()
