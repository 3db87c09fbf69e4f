"""nodeleak completion: scripts with which a shell completes the command line."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from string import Template
from typing import Any, Final

from agent.cli.candidates import COMPLETE, Candidates, commands_with, next_words
from agent.cli.output import DONE, write

HELP: Final = """\
The shell then asks nodeleak itself what may follow: commands, options, and words of 'explain'.

examples:
  source <(nodeleak completion bash)      in ~/.bashrc
  source <(nodeleak completion zsh)       in ~/.zshrc, after compinit
  nodeleak completion fish | source       in ~/.config/fish/config.fish

exit codes:
  0  done
  2  wrong usage
"""

# COMP_LINE and not COMP_WORDS, which bash splits at `=` and `:`.
_BASH: Final = """\
_nodeleak() {
  local line=$${COMP_LINE:0:COMP_POINT} words word
  read -r -a words <<<"$$line"
  [[ $$line != *[[:space:]] ]] || words+=('')
  word=$${words[-1]}
  local -a found
  mapfile -t found < <(nodeleak $complete "$${words[@]:1}" 2>/dev/null)
  COMPREPLY=()
  local each before=
  [[ $$COMP_WORDBREAKS != *=* || $$word != *=* ]] || before=$${word%%=*}=
  for each in "$${found[@]}"; do
    each=$${each%%$$'\\t'*}
    if [[ $$each == :0 ]]; then
      compopt -o default
    elif [[ $$each != :* ]]; then
      COMPREPLY+=("$${each#"$$before"}")
    fi
  done
}
complete -F _nodeleak nodeleak
"""
_ZSH: Final = """\
#compdef nodeleak
_nodeleak() {
  local -a found described
  local each
  found=("$${(@f)$$(nodeleak $complete "$${(@)words[2,CURRENT]}" 2>/dev/null)}")
  for each in "$${(@)found[1,-2]}"; do
    each=$${each//:/\\\\:}
    described+=("$${each/$$'\\t'/:}")
  done
  _describe nodeleak described
  [[ $$found[-1] != :0 ]] || _files
}
compdef _nodeleak nodeleak
"""
_FISH: Final = """\
function __nodeleak
  set -l found (nodeleak $complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
  string match -v -r '^:[0-9]$$' -- $$found
  if test "$$found[-1]" = :0
    __fish_complete_path (commandline -ct)
  end
end
complete -c nodeleak -f -a '(__nodeleak)'
"""
_SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"nodeleak completion {'|'.join(_SCRIPTS)}"
    parser.add_argument("shell", choices=_SCRIPTS, metavar="SHELL", help=", ".join(_SCRIPTS))


def execute(arguments: argparse.Namespace) -> int:
    write(Template(_SCRIPTS[arguments.shell]).substitute(complete=COMPLETE))
    return DONE


def candidates(
    words: Sequence[str], commands: Mapping[str, str], make_parser: Callable[[str], Any]
) -> Candidates:
    """Return what may follow on a command line of nodeleak.

    `words`: those after the program. `commands`: summaries by name. `make_parser`: that of
    `agent.cli.parser`, which imports this module.
    """
    command, *rest = words or [""]
    if not rest:
        return commands_with(command, commands)
    if command == "help" and len(rest) == 1:
        return commands_with(rest[0], commands)
    if command not in commands:
        return Candidates()

    parser = make_parser(command).get_default("parsers")[command]
    return next_words(
        parser, rest, getattr(import_module(f"agent.cli.{command}"), "CANDIDATES", {})
    )
