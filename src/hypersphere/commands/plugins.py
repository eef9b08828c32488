"""``--plugin MODULE``: parts of the user's own, imported because the user says so.

Nothing else imports code: a config or a run folder names its parts, and is refused if they are not
registered.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hypersphere import registry
from hypersphere.commands._yaml import ConfigError

__all__ = ["import_plugin", "split_plugins", "take_plugins"]


def split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate ``--plugin MODULE``, given any number of times, from the other words.

    Args:
        arguments: a command line.

    Returns:
        The command line without these options, and the modules and files in order.

    Raises:
        ConfigError: if the option has no value.
    """
    rest: list[str] = []
    plugins: list[str] = []
    items = iter(arguments)
    for item in items:
        flag, equals, value = item.partition("=")
        if flag != "--plugin":
            rest.append(item)
            continue
        given = value if equals else next(items, "")
        if not given or given.startswith("--"):
            raise ConfigError("--plugin needs a module name or the path of a .py file")
        plugins.append(given)
    return rest, plugins


def take_plugins(arguments: Sequence[str]) -> list[str]:
    """Import what ``--plugin MODULE`` names, any number of times.

    Args:
        arguments: a command line.

    Returns:
        The command line without these options.

    Raises:
        ConfigError: if a plugin is not there, cannot be imported, or registers nothing.
    """
    rest, plugins = split_plugins(arguments)
    for name in plugins:
        import_plugin(name)
    return rest


def import_plugin(name: str) -> ModuleType:
    """Import a module that registers parts.

    Args:
        name: a module such as ``my_package.parts``, or the path of a .py file. A module that is
            not installed is also looked for as a file in the current folder.

    Returns:
        The module.

    Raises:
        ConfigError: if it is not there, cannot be imported, or registers nothing.
    """
    import hypersphere.training  # noqa: F401 - registers our parts before any other
    from hypersphere.training.own_parts import place_of

    before = registry.revision()
    path = _file_of(name)
    try:
        module, new = _import_file(path) if path is not None else _import_module(name)
    except ConfigError:
        raise
    except Exception as error:  # whatever the plugin raises
        detail = f"{type(error).__name__}: {error}{place_of(error)}"
        raise ConfigError(f"the plugin {name} cannot be imported: {detail}") from error
    if new and registry.revision() == before:
        del sys.modules[module.__name__]  # so that it is read again once it does
        raise ConfigError(
            f"the plugin {name} registers nothing: put @hypersphere.register(kind, name) on its "
            f"classes or functions"
        )
    return module


def _file_of(name: str) -> Path | None:
    """The file that a plugin names; None for an installed module."""
    if name.endswith(".py") or "/" in name or "\\" in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no plugin {name}")
        return path.resolve()
    try:
        installed = name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        installed = False
    if installed:
        return None
    path = Path(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        raise ConfigError(f"there is no plugin {name}: neither a module nor a file {path}")
    return path.resolve()


def _import_module(name: str) -> tuple[ModuleType, bool]:
    new = name not in sys.modules
    return importlib.import_module(name), new


def _import_file(path: Path) -> tuple[ModuleType, bool]:
    """Import a file under its own name; another file of that name has its hash as well."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name = path.stem
    old = sys.modules.get(name)
    if old is not None and getattr(old, "__file__", None) != str(path):
        name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        old = sys.modules.get(name)
    if old is not None and getattr(old, "__sha256__", None) == digest:
        return old, False
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the plugin {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    module.__sha256__ = digest  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module, True
