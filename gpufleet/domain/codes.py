"""Codes that stay the same, with a sentence for people. What a newer release wrote is read as unknown."""

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """Members are declared as `NAME = "code", "sentence"`. The code is stored, the sentence is shown.

    A code that this release does not know makes a member of its own: it keeps the code, so that it can be written
    back, and equals no declared member. Callers count it on the safe side.
    """

    sentence: str
    known: bool
    """False: a newer release wrote it."""

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
