"""Kernels from files: a file run as a module, the kernels in it, and the lines of its errors."""

from __future__ import annotations

import ast
import errno
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from corepipe.errors import UserError, shown
from corepipe.nki.core.errors import KernelError, Site
from corepipe.nki.core.recorder import PACKAGE

DECORATORS = frozenset({"jit", "benchmark", "baremetal", "profile"})
"""Names of the decorators that make kernels of functions, in either dialect."""

ALLOWED = "a kernel's file can import numpy, ml_dtypes and the kernel language (nki or neuronxcc.nki)"


def source_of(path: Path) -> str:
    """Returns the text of a Python file.  Raises UserError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text") from error


def module_of(path: Path) -> ModuleType:
    """Runs a file as a module, as `python FILE` would, and returns it; a file is run once.

    Its folder is the first in which its imports look.  Raises UserError where it cannot be read, SyntaxError
    where it is no Python, and what the file itself raises.
    """
    name = str(path.resolve())  # that of no other module
    if name in sys.modules:
        return sys.modules[name]
    source_of(path)
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module  # dataclasses look their module up
    # ast-grep-ignore: no-eval -- the user's own file, named by a flag
    loader.exec_module(module)
    return module


def kernels_in(text: str) -> list[str]:
    """Returns the names of the functions of a source that a decorator or a call makes kernels, in order."""
    found: dict[str, None] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef() if any(map(_makes_kernels, node.decorator_list)):
                found[node.name] = None
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if _makes_kernels(call):
                found[name] = None
    return list(found)


def _makes_kernels(node: ast.expr) -> bool:
    """Tells whether an expression is `nki.jit`, `jit`, `nki.jit(...)` or another of these decorators."""
    called = node.func if isinstance(node, ast.Call) else node
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if isinstance(called, ast.Call):  # nki.benchmark(warmup=5)(function)
        return _makes_kernels(called)
    return name in DECORATORS


def entry_of(module: ModuleType, path: Path, wanted: str | None) -> str:
    """Returns the name of the kernel to run: the one that is wanted, or the only one in the file."""
    if wanted is not None:
        if callable(getattr(module, wanted, None)):
            return wanted
        raise UserError(f"{path}: has no function {shown(wanted)}; {_offered(module, path)}", "entry")
    found = kernels_in(source_of(path))
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{path}: has several kernels; name one of them with --entry: {', '.join(found)}")
    raise UserError(f"{path}: has no function with @nki.jit; {_offered(module, path)}", "entry")


def _offered(module: ModuleType, path: Path) -> str:
    """Returns the functions that can be named, those that are kernels where there are any."""
    names = kernels_in(source_of(path)) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    if not names:
        return "it defines no function"
    return f"name one of its functions with --entry: {', '.join(names)}"


def function_of(reference: str, flag: str) -> Any:
    """Returns the function that FILE.py:FUNCTION names.  Raises UserError where it is not there."""
    file, _, name = reference.rpartition(":")
    module = module_of(Path(file))
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{flag} {reference}: {file} has no function {shown(name)}", flag.lstrip("-"))
    return function


def parameters_of(kernel: Any) -> list[Parameter]:
    """Returns the parameters of a kernel, or none where they are not known."""
    try:
        return list(signature(kernel).parameters.values())
    except (TypeError, ValueError):
        return []


def described(error: BaseException, path: Path) -> str:
    """Returns an error of a user's code in a line, with the line of the file where it arose.

    path: the file to name where the error has no line.
    """
    error = of_user(error)
    site = site_of(error.__traceback__)
    if isinstance(error, UserError) and (site is None or _has_line(error)):
        return error.message
    if isinstance(error, SyntaxError):
        return f"{_named(error.filename or '', path)}:{error.lineno}: {error.msg}"
    return f"{f'{_named(site.file, path)}:{site.line}' if site else path}: {_what(error)}"


def _has_line(error: UserError) -> bool:
    """Tells whether an error's message begins with a line of the user's."""
    site = error.site if isinstance(error, KernelError) else None
    return site is not None and is_of_user(site.file)


def of_user(error: BaseException) -> BaseException:
    """Returns the error that a kernel raised, where `simulate` has made a KernelError of it."""
    cause = error.__cause__
    return cause if isinstance(error, KernelError) and cause and not isinstance(cause, KernelError) else error


def _what(error: BaseException) -> str:
    """Returns what is wrong, in words where it is frequent."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    match error:
        case ModuleNotFoundError(name=str(name)):
            return f"imports {name}, which is not installed here; {ALLOWED}"
        case OSError(errno=errno.EFBIG):
            return "writes a file, which a kernel may not"
        case SystemExit():
            return f"ends the process (exit code {error.code})"
        case KernelError(site=Site() as site):
            return text.removeprefix(f"{site}: ")
        case UserError() | AttributeError() | ImportError():
            return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _named(file: str, path: Path) -> str:
    """Returns the name of a file as the user gave it, or its last part."""
    return str(path) if file == str(path) else Path(file).name


def site_of(traceback: TracebackType | None) -> Site | None:
    """Returns the innermost line of a traceback that is the user's; None if none is."""
    found = None
    while traceback is not None:
        if is_of_user(file := traceback.tb_frame.f_code.co_filename):
            found = Site(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def is_of_user(file: str) -> bool:
    """Tells whether a file is there, and is neither Python's nor an installed package's nor ours."""
    return not file.startswith((PACKAGE, *_libraries())) and Path(file).is_file()


def _libraries() -> Iterator[str]:
    paths = sysconfig.get_paths()
    return (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
