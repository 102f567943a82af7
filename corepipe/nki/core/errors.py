"""Errors of kernels, with the line of the kernel that caused them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from corepipe.errors import UserError


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a kernel's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class KernelError(UserError):
    """A kernel breaks a rule of the language or of the device, or it uses what is not there.

    The message names the line; `site` has it for machines, `rule` is the name of the rule in `rules`.
    """

    def __init__(self, message: str, site: Site | None = None, rule: str = "") -> None:
        super().__init__(f"{site}: {message}" if site else message)
        self.site, self.rule = site, rule
