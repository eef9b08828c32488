"""`hypersphere completion bash|zsh`: a script that lets the shell complete commands and options.

The words are written into the script, because asking the command at each key would take seconds;
print it again after an update.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hypersphere import registry
from hypersphere.commands._config import FIXED
from hypersphere.commands._evaluation import KINDS
from hypersphere.commands._gallery import COMMANDS as GALLERY
from hypersphere.commands.listing import LISTINGS
from hypersphere.training.parts import CHANGES, KIND_OF_SECTION, options, section_options

__all__ = ["main"]

_FLAGS = {
    "train": "--resume --variant --plugin --baseline --print_config --print_schema --help",
    "compare": "--seeds --folder --jobs --baseline --tune --holdout --metric --plugin --help",
    "sweep": "--search --trials --folds --metric --minimize --storage --study --plugin --help",
    "claims": "run --jobs --folder --results --seeds --help",
    "report": "--output --watch --every --patience --help --plugin",
    "completion": "bash zsh --help",
    "points": "--help --draw",
    "data": "--help --root --download --verify",
    "models": "--help --markdown --batch",
    "recipes": "--help --results",
}

_SCRIPT = """# completion of hypersphere for bash and zsh; made by `hypersphere completion`
_hypersphere() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "$previous" in
{values}
        esac
        if [ -z "$words" ]; then
            case "${{COMP_WORDS[1]}}" in
{flags}
            esac
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _hypersphere hypersphere
"""


def main(argv: Sequence[str], commands: Sequence[str]) -> int:
    """Print the script for a shell.

    Args:
        argv: the name of the shell.
        commands: the names of all commands.

    Returns:
        0.
    """
    parser = argparse.ArgumentParser(
        prog="hypersphere completion",
        description="Print a script that completes commands, options and names.",
        epilog="once, and again after an update: hypersphere completion bash > FILE; then "
        "`source FILE` in ~/.bashrc, or of that for zsh in ~/.zshrc",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    # zsh understands bash's completions once it is told to.
    start = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"
    print((start if shell == "zsh" else "") + _script(commands), end="")
    return 0


def _script(commands: Sequence[str]) -> str:
    training = " ".join(f"--{key}" for key in _train_options())
    flags = {name: _FLAGS.get(name, "--help --plugin") for name in commands}
    flags |= {name: f"{_FLAGS[name]} {training}" for name in ("train", "compare", "sweep")}
    flags |= {name: " ".join(registry.names(kind)) for name, kind in LISTINGS.items()}
    flags["evaluate"] = " ".join([*KINDS, "--features --json --quiet --plugin --help"])
    flags["gallery"] = " ".join([*GALLERY, "--run --features --plugin --help"])
    flags["models"] = f"{flags['models']} {' '.join(registry.names('model'))}"
    flags["data"] = f"{flags['data']} {' '.join(registry.names('data'))}"
    indent = " " * 12
    return _SCRIPT.format(
        commands=" ".join(commands),
        values="\n".join(f'{indent}--{k}) words="{" ".join(v)}" ;;' for k, v in _values().items()),
        flags="\n".join(f'{indent}    {name}) words="{words}" ;;' for name, words in flags.items()),
    )


def _train_options() -> list[str]:
    keys = [*section_options(), "model.name", "head.name"]
    keys += [f"{section}.{name}" for section in FIXED for name in section_options(section)]
    keys += [f"{section}.{name}" for section in CHANGES for name in options(section, "")]
    parts = {"regularizers": "regularizer", "hooks": "hook"}
    return keys + [f"{s}.{name}" for s, kind in parts.items() for name in registry.names(kind)]


def _values() -> dict[str, Sequence[str]]:
    """The words that may follow an option."""
    found: dict[str, Sequence[str]] = {}
    for section in ("model", "head"):
        found[f"{section}.name"] = registry.names(KIND_OF_SECTION[section])
    for section in ("", *FIXED):
        for name, option in section_options(section).items():
            key = f"{section}.{name}" if section else name
            if option.choices:
                found[key] = option.choices
            elif option.type is bool:
                found[key] = ("true", "false")
    return found
