"""Stable codes, each with a text for people. Codes of a newer release are read as unknown."""

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """An enum of codes. Declare members as `NAME = "code", "sentence"`. The code is stored, the sentence is shown.

    A code that this release does not know becomes a new member. It keeps the code, so that it can be written back,
    and equals no declared member. Callers treat it in the safe way.
    """

    sentence: str
    known: bool
    """False if a newer release wrote the code."""

    def __new__(cls, code: str, sentence: str) -> Self:
        return cls._made(code, sentence, known=True)

    @classmethod
    def _missing_(cls, value: object) -> Self:
        code = str(value)
        made = cls._made(code, f"unknown ({code})", known=False)
        made._name_ = code
        return made

    @classmethod
    def _made(cls, code: str, sentence: str, *, known: bool) -> Self:
        made = str.__new__(cls, code)
        made._value_ = code
        made.sentence = sentence
        made.known = known
        return made
