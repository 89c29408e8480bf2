"""Runs with vLLM's own Python, not with the tests': reads jobs as JSON from standard input, writes answers as JSON.

`arguments`: each list is parsed by vLLM's own parser. `blocks`: each model folder is given to a real engine in a
process of its own, forked after the import, which takes longer than all the rest; the engine says how many blocks
its cache has.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false, reportUnknownMemberType=false
import json
import os
import sys
import traceback
from typing import Any


def parse(lists: list[list[str]]) -> list[str | None]:
    """Of each list: None, or vLLM's words against it."""
    import argparse

    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False, allow_abbrev=False))

    def check(words: list[str]) -> str | None:
        try:
            found = parser.parse_args(words)
            found.model = found.model_tag
            validate_parsed_serve_args(found)
        except (argparse.ArgumentError, SystemExit, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    return [check(words) for words in lists]


def blocks(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each job (`model`, `options`): what the engine says of its cache, or its error."""
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
    """The answer of a child: an engine leaves too much behind for the next one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work(job)
        except BaseException as error:  # noqa: BLE001 - a child must not go on as its parent
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
    """Do the jobs."""
    jobs = json.load(sys.stdin)
    # libraries print to standard output, which belongs to the answer
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
