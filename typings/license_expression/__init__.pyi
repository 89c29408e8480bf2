"""What scripts/licences.py uses of license_expression, which has no types."""

from collections.abc import Sequence
from typing import Any

class ExpressionError(Exception): ...

class Expression:
    args: Sequence[Any]
    def render(self) -> str: ...

class LicenseSymbol(Expression):
    key: str

class Licensing:
    AND: type[Expression]
    OR: type[Expression]
    def parse(self, expression: str, validate: bool = ..., strict: bool = ...) -> Expression | None: ...

def get_spdx_licensing() -> Licensing: ...
